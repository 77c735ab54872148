// fetch, with the engine's own words when it refuses.
export async function ask(path, options) {
  const response = await fetch(path, options);
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // the status line has to do
  }
  throw new Error(message);
}
