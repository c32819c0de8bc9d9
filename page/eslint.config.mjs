// Lints the page: text reaches the document as text nodes only.
import tseslint from "typescript-eslint";

const SAYS = "Text of a model must never be read as HTML: make elements and text nodes.";
const PROPERTIES = ["innerHTML", "outerHTML", "dangerouslySetInnerHTML", "srcdoc"];
const METHODS = [
  "insertAdjacentHTML", "setHTMLUnsafe", "write", "writeln", "createContextualFragment",
  "parseFromString",
];

export default tseslint.config(
  { ignores: ["node_modules/", "src/api.ts"] },
  ...tseslint.configs.recommended,
  {
    rules: {
      "no-eval": "error",
      "no-new-func": "error",
      "@typescript-eslint/no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      "no-restricted-syntax": [
        "error",
        ...PROPERTIES.flatMap((name) => [
          { selector: `MemberExpression[property.name="${name}"]`, message: SAYS },
          { selector: `MemberExpression[property.value="${name}"]`, message: SAYS },
          { selector: `JSXAttribute[name.name="${name}"]`, message: SAYS },
          { selector: `Property[key.name="${name}"]`, message: SAYS },
        ]),
        ...METHODS.map((name) => ({
          selector: `CallExpression[callee.property.name="${name}"]`,
          message: SAYS,
        })),
      ],
    },
  },
);
