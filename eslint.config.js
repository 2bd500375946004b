import { existsSync } from 'node:fs';
import js from '@eslint/js';
import tseslint from 'typescript-eslint';

// What the bench compares us with is a package of its own: its types are there once the bench has installed it.
const peers = existsSync(`${import.meta.dirname}/test/bench/peers/node_modules`) ? [] : ['test/bench/peers'];

export default tseslint.config(
  {
    ignores: [
      'node_modules',
      '.build',
      '.serverless',
      '.cronce',
      '**/*.cjs',
      'dist',
      'infra/cli/template',
      ...peers,
    ],
  },
  js.configs.recommended,
  tseslint.configs.strictTypeChecked,
  {
    languageOptions: {
      parserOptions: {
        projectService: { allowDefaultProject: ['eslint.config.js'] },
        tsconfigRootDir: import.meta.dirname,
      },
    },
    linterOptions: { reportUnusedDisableDirectives: 'error' },
    rules: {
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/no-explicit-any': 'error',
      '@typescript-eslint/switch-exhaustiveness-check': [
        'error',
        { considerDefaultExhaustiveForUnions: true },
      ],
      // Numbers read well inside templates; everything else must be converted on purpose.
      '@typescript-eslint/restrict-template-expressions': [
        'error',
        { allowNumber: true, allowBoolean: true },
      ],
      // `work` may be async and await nothing; the type asks for a promise.
      '@typescript-eslint/require-await': 'off',
      // What a statement answers is typed where it is asked.
      '@typescript-eslint/no-unnecessary-type-parameters': 'off',
      '@typescript-eslint/no-unused-vars': ['error', { ignoreRestSiblings: true }],
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
    },
  },
  // A step is read at one look.
  { files: ['src/**'], rules: { complexity: ['error', 12], 'max-lines-per-function': ['error', 60] } },
  { files: ['eslint.config.js'], extends: [tseslint.configs.disableTypeChecked] },
);
