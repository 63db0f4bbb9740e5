// Colors that readers with color blindness can distinguish. Sequential scales change in lightness from end to end;
// categories use the palette of Okabe and Ito and come with a shape.

const STOPS = {
  // similarity and other amounts: light to dark on light pages, dark to light on dark pages
  light: { amount: ["#f3f6f9", "#c9dcea", "#86b4d3", "#3f83b3", "#0f5186", "#082f57"],
    surprise: ["#ffffff", "#fdf0cf", "#f9d48a", "#eea64a", "#cf6f1f", "#8f3d0d"],
    diverging: ["#a8500c", "#e2a15e", "#f7e2c6", "#ffffff", "#cfe1ef", "#6fa8cf", "#0f5c95"] },
  dark: { amount: ["#1d242c", "#213f59", "#2a6592", "#4c92c2", "#8fc3e6", "#dceffb"],
    surprise: ["#1b1f24", "#43331b", "#77511d", "#b1762b", "#e5a14b", "#ffd591"],
    diverging: ["#f4a65c", "#b16a25", "#5b3d1f", "#1b1f24", "#1f3f58", "#357cae", "#86c5f0"] },
};

/** A color scale: share (0..1, or −1..1 for "diverging") -> "rgb(…)". Names: amount, surprise, diverging. */
export function colorScale(name, theme) {
  const stops = STOPS[theme][name].map(toRgb);
  return (share) => {
    const unit = name === "diverging" ? (share + 1) / 2 : share;
    const place = Math.max(0, Math.min(1, Number.isFinite(unit) ? unit : 0)) * (stops.length - 1);
    const k = Math.min(stops.length - 2, Math.floor(place));
    const color = stops[k].map((value, c) => Math.round(value + (stops[k + 1][c] - value) * (place - k)));
    return `rgb(${color.join(",")})`;
  };
}

/** Black or white, the one that is easier to read on a color "rgb(…)". */
export function textOn(color) {
  const [r, g, b] = color.match(/[\d.]+/g).map((value) => {
    const c = value / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) ? "#000000" : "#ffffff"; // at least 4.58 : 1
}

function toRgb(hex) {
  return [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
}

/** The color of category k as a CSS value; style.css defines --group-0 … --group-7 for light and dark pages. */
export function groupColor(k) {
  return `var(--group-${k % 8})`;
}

/** The outline of a mark of category k with radius r, around 0, 0: circle, square, triangle, diamond, … */
export function groupShape(k, r) {
  const s = r * 0.9, d = r * 1.25;
  return [
    `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
    `M${-s},${-s}H${s}V${s}H${-s}Z`,
    `M0,${-d}L${d},${d * 0.75}H${-d}Z`,
    `M0,${-d}L${d},0L0,${d}L${-d},0Z`,
    `M0,${d}L${d},${-d * 0.75}H${-d}Z`,
    `M${-d},${-r / 3}H${-r / 3}V${-d}H${r / 3}V${-r / 3}H${d}V${r / 3}H${r / 3}V${d}H${-r / 3}V${r / 3}H${-d}Z`,
  ][k % 6];
}
