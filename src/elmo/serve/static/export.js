// Files of what is shown: tables as CSV, charts as SVG and PNG.

/** Offer a file for download. */
export function saveFile(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** A table {columns, rows} as CSV in the order of its rows (RFC 4180; with a byte order mark, for spreadsheets). */
export function toCsv({ columns, rows }) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return "\ufeff" + [columns, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

const PROPERTIES = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "font-family",
  "font-size", "font-weight", "text-anchor", "dominant-baseline", "paint-order", "stroke-linejoin", "image-rendering",
];

/** An <svg> element as a document of its own: the styles of the page are written into it. */
export function toSvg(svg) {
  const copy = svg.cloneNode(true);
  const pairs = [[svg, copy]];
  while (pairs.length) {
    const [from, to] = pairs.pop();
    const style = getComputedStyle(from);
    for (const name of PROPERTIES) {
      const value = style.getPropertyValue(name);
      if (value) to.setAttribute(name, value);
    }
    for (const name of ["class", "style", "tabindex", "role", "aria-pressed", "aria-describedby"]) to.removeAttribute(name);
    [...from.children].forEach((child, k) => pairs.push([child, to.children[k]]));
  }
  copy.querySelectorAll("[data-screen-only]").forEach((element) => element.remove());
  const { width, height } = svg.viewBox.baseVal;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const background = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  background.setAttribute("width", "100%");
  background.setAttribute("height", "100%");
  background.setAttribute("fill", getComputedStyle(document.documentElement).getPropertyValue("--surface").trim() || "#fff");
  copy.prepend(background);
  return new XMLSerializer().serializeToString(copy);
}

/** An <svg> element as a PNG image. */
export async function toPng(svg, scale = 2) {
  const { width, height } = svg.viewBox.baseVal;
  const url = URL.createObjectURL(new Blob([toSvg(svg)], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: width * scale, height: height * scale });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve, reject) => {
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no image"))), "image/png");
    });
  } finally {
    URL.revokeObjectURL(url);
  }
}
