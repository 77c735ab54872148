// A line of the last minute, without axes: is it rising or falling?
const LENGTH = 60;

export function sized(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export class Spark {
  constructor(canvas) {
    this.canvas = canvas;
    this.values = [];
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > LENGTH) this.values.shift();
    const { context, width, height } = sized(this.canvas);
    const known = this.values.filter((one) => one !== null);
    const top = Math.max(...known, 1e-9);
    context.strokeStyle = colour("owned");
    context.lineWidth = 1.5;
    context.beginPath();
    let drawing = false;
    this.values.forEach((one, index) => {
      if (one === null) {
        drawing = false;
        return;
      }
      const x = width - (this.values.length - 1 - index) * (width / (LENGTH - 1));
      const y = height - 2 - (one / top) * (height - 4);
      if (drawing) context.lineTo(x, y);
      else context.moveTo(x, y);
      drawing = true;
    });
    context.stroke();
  }
}
