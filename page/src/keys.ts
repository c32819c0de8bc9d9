// Binds keys of the page: each view names its own, and the help overlay lists those that are bound.
import { useLayoutEffect } from "preact/hooks";

export interface Binding {
  key: string;
  says: string;
  run: () => void;
}

const bound = new Map<symbol, Binding[]>();

/**
 * Binds keys while a part is shown; of two parts that bind a key the later one has it. They are bound
 * before what is shown can be seen, so that no key meets the view before.
 */
export function useKeys(bindings: Binding[]): void {
  useLayoutEffect(() => {
    const owner = Symbol();
    bound.set(owner, bindings);
    return () => void bound.delete(owner);
  });
}

export function listKeys(): Binding[] {
  const byKey = new Map<string, Binding>();
  for (const bindings of bound.values()) for (const each of bindings) byKey.set(each.key, each);
  return [...byKey.values()];
}

export function startKeys(): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (isTyping(event.target)) return;
    const binding = listKeys().find((each) => each.key === event.key);
    if (!binding) return;
    event.preventDefault();
    binding.run();
  });
}

function isTyping(target: EventTarget | null): boolean {
  const element = target as HTMLElement | null;
  if (!element?.tagName) return false;
  if (element.isContentEditable || element.tagName === "TEXTAREA") return true;
  if (element.tagName === "SELECT") return true;
  const kind = (element as HTMLInputElement).type;
  return element.tagName === "INPUT" && kind !== "checkbox" && kind !== "radio";
}
