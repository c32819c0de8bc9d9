// Chooses the class of a value: five strengths each of plus and minus, and of what has no sign.
import type { Tokens } from "./api";

export type Mode = "advantage" | "logprob" | "entropy" | "gap" | "clip" | "version";

export const MODES: { mode: Mode; says: string }[] = [
  { mode: "advantage", says: "advantage" },
  { mode: "logprob", says: "log-prob" },
  { mode: "entropy", says: "entropy" },
  { mode: "gap", says: "gap of sampler and learner" },
  { mode: "clip", says: "clipped" },
  { mode: "version", says: "policy version" },
];

export interface Colouring {
  classes: string[]; // by token
  legend: [string, string][]; // class, what it says
  note: string;
}

/** Returns "p1" to "p5", "m1" to "m5", or "" for zero and for nothing. */
export function classifySigned(value: number | null | undefined, largest: number): string {
  if (value === null || value === undefined || !Number.isFinite(value) || value === 0) return "";
  const strength = Math.min(5, Math.max(1, Math.ceil((5 * Math.abs(value)) / (largest || 1))));
  return (value > 0 ? "p" : "m") + strength;
}

function classifySize(value: number | null, largest: number): string {
  if (value === null || !Number.isFinite(value)) return "";
  const strength = Math.min(5, Math.max(0, Math.round((5 * value) / (largest || 1))));
  return strength ? `q${strength}` : "";
}

export function listModes(tokens: Tokens): Mode[] {
  const columns: Record<Mode, unknown> = {
    advantage: tokens.advantages,
    logprob: tokens.logprobs,
    entropy: tokens.entropies,
    gap: tokens.logprobs && tokens.learner_logprobs,
    clip: tokens.clipped,
    version: tokens.versions,
  };
  return MODES.map(({ mode }) => mode).filter((mode) => columns[mode]);
}

export function readGaps(tokens: Tokens): (number | null)[] {
  const { logprobs, learner_logprobs: learner } = tokens;
  if (!logprobs || !learner) return [];
  return logprobs.map((value, index) => {
    const other = learner[index];
    return value === null || other === null || other === undefined ? null : other - value;
  });
}

export function colourTokens(tokens: Tokens, mode: Mode): Colouring {
  switch (mode) {
    case "advantage":
      return colourSigned(tokens.advantages ?? [], 0.05, "advantage");
    case "gap":
      return colourSigned(readGaps(tokens), 0.01, "learner − sampler, log-prob");
    case "logprob": {
      const surprise = (tokens.logprobs ?? []).map((value) => (value === null ? null : -value));
      return colourSizes(surprise, 5, (value) => `log-prob ${(-value).toFixed(1)}`);
    }
    case "entropy": {
      const largest = largestSize(tokens.entropies ?? [], 0.1);
      return colourSizes(tokens.entropies ?? [], largest, (v) => `entropy ${v.toFixed(2)}`);
    }
    case "clip":
      return {
        classes: (tokens.clipped ?? []).map((isClipped) => (isClipped ? "clip" : "")),
        legend: [["clip", "clipped: it does not move the weights"]],
        note: `${(tokens.clipped ?? []).filter(Boolean).length} of ${tokens.ids.length} clipped`,
      };
    case "version":
      return colourVersions(tokens.versions ?? []);
  }
}

function colourSigned(values: (number | null)[], least: number, what: string): Colouring {
  const largest = largestSize(values, least);
  const mark = (share: number): string => (share * largest).toFixed(largest < 0.1 ? 4 : 2);
  return {
    classes: values.map((value) => classifySigned(value, largest)),
    legend: [
      ["m5", `−${mark(1)}`],
      ["m2", `−${mark(0.4)}`],
      ["", "0"],
      ["p2", `+${mark(0.4)}`],
      ["p5", `+${mark(1)}`],
    ],
    note: what,
  };
}

function colourSizes(
  values: (number | null)[],
  largest: number,
  say: (value: number) => string,
): Colouring {
  return {
    classes: values.map((value) => classifySize(value, largest)),
    legend: [0, 1, 3, 5].map((step) => [step ? `q${step}` : "", say((step * largest) / 5)]),
    note: "",
  };
}

function colourVersions(versions: number[]): Colouring {
  const order = [...new Set(versions)].sort((a, b) => a - b);
  const place = new Map(order.map((version, index) => [version, `v${index % 5}`]));
  return {
    classes: versions.map((version) => place.get(version) ?? ""),
    legend: order.slice(0, 10).map((version) => [place.get(version)!, `version ${version}`]),
    note: order.length > 10 ? `10 of ${order.length} versions are listed` : "",
  };
}

function largestSize(values: (number | null)[], least: number): number {
  let largest = least;
  for (const value of values) {
    if (value !== null && Number.isFinite(value)) largest = Math.max(largest, Math.abs(value));
  }
  return largest;
}
