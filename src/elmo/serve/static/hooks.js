// Hooks that views share.
import { createContext, useContext, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";

/** What every component may need: {t, lang, theme} (theme is "light" or "dark"). */
export const PageContext = createContext(null);

export function usePage() {
  return useContext(PageContext);
}

/**
 * Ask for something when `key` changes: `load(signal)` returns a promise. The request of the previous key is aborted.
 * Returns {value, key, error, isStale}: `value` belongs to `key`, which may be older than the key that was asked for
 * (then isStale is true), so that a view keeps showing its last content until the next arrives.
 * A key of null asks for nothing and clears the value. `delay` waits (milliseconds) for further changes.
 */
export function useRequest(key, load, { delay = 0 } = {}) {
  const [state, setState] = useState({ value: null, key: null, error: null });
  const loader = useRef(load);
  loader.current = load;
  useEffect(() => {
    if (key === null) {
      setState({ value: null, key: null, error: null });
      return undefined;
    }
    const controller = new AbortController();
    let timer = 0;
    const start = async () => {
      try {
        const value = await loader.current(controller.signal);
        if (!controller.signal.aborted) setState({ value, key, error: null });
      } catch (error) {
        if (controller.signal.aborted) return;
        if (error.retryAfter && error.code !== "deadline_exceeded") {
          setState((state) => ({ ...state, error }));
          timer = setTimeout(start, Math.min(10, error.retryAfter) * 1000);
        } else setState({ value: null, key, error });
      }
    };
    timer = setTimeout(start, delay);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [key]);
  return { ...state, isStale: state.key !== key };
}

/** The width of an element in CSS pixels: [ref, width]. */
export function useWidth(initial = 480) {
  const ref = useRef(null);
  const [width, setWidth] = useState(initial);
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return undefined;
    const measure = () => {
      const size = Math.floor(element.clientWidth);
      if (size > 0) setWidth(size);
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

/** Positions [[x, y], …] that move to their new values; they jump if their ids change or motion is unwelcome. */
export function useMoving(positions, ids, { duration = 350, maxPoints = 300 } = {}) {
  const [, redraw] = useState(0);
  const moving = useRef({ ids: null, from: positions, to: positions, begin: 0 }).current;
  const now = performance.now();
  const current = () => {
    const share = Math.min(1, (performance.now() - moving.begin) / duration);
    const eased = 1 - (1 - share) ** 3;
    return share >= 1 ? moving.to : moving.to.map(([x, y], k) => {
      const [a, b] = moving.from[k];
      return [a + (x - a) * eased, b + (y - b) * eased];
    });
  };
  const isSame = moving.to.length === positions.length
    && positions.every(([x, y], k) => x === moving.to[k][0] && y === moving.to[k][1]);
  if (!isSame || moving.ids !== ids) {
    const canMove = moving.ids === ids && positions.length <= maxPoints
      && !matchMedia("(prefers-reduced-motion: reduce)").matches;
    const from = canMove ? current() : positions;
    Object.assign(moving, { ids, from, to: positions, begin: canMove ? now : -Infinity });
  }
  useEffect(() => {
    let frame = 0;
    const step = () => {
      redraw((n) => n + 1);
      if (performance.now() - moving.begin < duration) frame = requestAnimationFrame(step);
    };
    if (performance.now() - moving.begin < duration) frame = requestAnimationFrame(step);
    return () => cancelAnimationFrame(frame);
  }, [moving.begin]);
  return current();
}
