// Pictures and videos that a message of the playground brings along, as far as the model takes them.
const KINDS = ["image", "video"];

const dataUrl = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.addEventListener("load", () => resolve(reader.result));
  reader.addEventListener("error", () => reject(reader.error));
  reader.readAsDataURL(file);
});

export class Attachments {
  constructor(label, input) {
    this.label = label;
    this.input = input;
  }

  // modalities: the kinds of content that the model takes.
  offer(modalities) {
    const taken = KINDS.filter((kind) => modalities.includes(kind));
    this.label.hidden = !taken.length;
    this.input.accept = taken.map((kind) => `${kind}/*`).join(",");
  }

  // The chosen files as parts of a message; none are chosen behind that.
  async take() {
    const files = [...this.input.files];
    const urls = await Promise.all(files.map(dataUrl));
    this.input.value = "";
    const parts = urls.map((url) => {
      const kind = url.startsWith("data:video/") ? "video_url" : "image_url";
      return { type: kind, [kind]: { url } };
    });
    return { names: files.map((file) => file.name), parts };
  }
}
