// Writes numbers, times and ids as text: signs are always written, and a minus is as wide as a plus.
import type { RunRow } from "./api";

export type Value = number | null | undefined;

export function showNumber(value: Value, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 10 ** -digits / 2) return minus(value.toExponential(1));
  if (Number.isInteger(value)) return minus(value.toLocaleString("en"));
  if (size >= 1000) return minus(Math.round(value).toLocaleString("en"));
  return minus(value.toFixed(size >= 100 ? 1 : size >= 10 ? Math.min(2, digits) : digits));
}

export function showSigned(value: Value, digits = 2): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const text = value.toFixed(digits);
  if (Number(text) === 0) return value === 0 ? "0" : value > 0 ? "+0" : "−0";
  return value > 0 ? `+${text}` : minus(text);
}

export function showShare(value: Value): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return `${(100 * value).toFixed(Math.abs(value) < 0.1 ? 1 : 0)} %`;
}

export function showSeconds(seconds: Value): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}

export function showAgo(when: number): string {
  const seconds = Date.now() / 1000 - when;
  return seconds < 5 ? "now" : `${showSeconds(seconds)} ago`;
}

export function showCount(count: number): string {
  return count.toLocaleString("en");
}

/** "1 turn", "2 turns". */
export function count(number: number, one: string, many = `${one}s`): string {
  return `${showCount(number)} ${number === 1 ? one : many}`;
}

export function showProgress(row: RunRow): string {
  return row.steps ? `${showCount(row.step)} / ${showCount(row.steps)}` : showCount(row.step);
}

function minus(text: string): string {
  return text.replace("-", "−");
}
