// A colour for each request that lives: by turns from a list, so that those alive at once differ and each keeps its own.
const HUES = ["#3b82d6", "#e8871e", "#2a9d5c", "#8f63dd", "#d8478f", "#12a5ab", "#c4a106", "#96673a", "#7cb02c", "#b245c4", "#5fb9ee"];
const SHADES = [0, 0.42, -0.34];

const channels = (text) => [1, 3, 5].map((place) => parseInt(text.slice(place, place + 2), 16));
export const rgb = (text) => channels(text.length === 4 ? text.replace(/[^#]/g, "$&$&") : text);
const mixed = (colour, shade) => colour.map((one) => Math.round(shade > 0 ? one + (255 - one) * shade : one * (1 + shade)));

export const COLOURS = SHADES.flatMap((shade) => HUES.map((hue) => mixed(rgb(hue), shade)));
export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

// A request: several may have the same label.
export const keyOf = (output) => `${output.arrival} ${output.label}`;

export class Palette {
  constructor() {
    this.places = new Map();
  }

  // The requests that live now; colours of others are free again.
  keep(keys) {
    const living = new Set(keys);
    for (const key of this.places.keys()) if (!living.has(key)) this.places.delete(key);
    const taken = new Set(this.places.values());
    let next = 0;
    for (const key of living) {
      if (this.places.has(key)) continue;
      while (taken.has(next)) next += 1;
      taken.add(next);
      this.places.set(key, next);
    }
  }

  of(key) {
    return COLOURS[(this.places.get(key) ?? 0) % COLOURS.length];
  }
}
