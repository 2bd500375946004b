// The direction of imports, as docs/layout.md draws it: entries on top, vocabulary at the bottom.
const step = '^src/path/(claim|enter|work|outcome|publish)\\.ts$';

/** @type {import('dependency-cruiser').IConfiguration} */
module.exports = {
  forbidden: [
    { name: 'no-cycles', severity: 'error', from: {}, to: { circular: true } },
    {
      name: 'src-reaches-up-to-nothing',
      comment: 'the package knows neither a deployment nor what sets one up',
      severity: 'error',
      from: { path: '^src/' },
      to: { path: '^(functions|infra|test)/' },
    },
    {
      name: 'infra-takes-any-registry',
      comment: 'it loads the one of the project that it is called in; see infra/project.ts',
      severity: 'error',
      from: { path: '^infra/' },
      to: { path: '^(functions|test)/' },
    },
    {
      name: 'functions-take-only-what-is-exported',
      comment: 'as the functions of whoever installs Cronce do',
      severity: 'error',
      from: { path: '^functions/' },
      to: { path: '^(src/(?!index\\.ts|lambda/index\\.ts|sinks/index\\.ts)|infra/|test/)' },
    },
    {
      name: 'steps-are-strangers',
      comment: 'each step keeps one secret; only steps.ts knows them all',
      severity: 'error',
      from: { path: step },
      to: { path: [step, '^src/(coordinate|path/steps)\\.ts$', '^src/(http|lambda|operate|sweep)/'] },
    },
    {
      name: 'the-path-knows-none-of-its-callers',
      severity: 'error',
      from: { path: '^src/path/' },
      to: {
        path: '^src/(coordinate|settings)\\.ts$|^src/(http|lambda|operate|sweep)/|^src/sinks/(?!sink\\.)',
      },
    },
    {
      name: 'vocabulary-has-no-io',
      severity: 'error',
      from: { path: '^src/run\\.ts$' },
      to: { path: ['^src/', '^node:'] },
    },
    {
      name: 'the-calendar-is-by-itself',
      severity: 'error',
      from: { path: '^src/calendar/' },
      to: { path: '^src/(?!calendar/)' },
    },
    {
      name: 'only-postgres-imports-a-driver',
      severity: 'error',
      from: { path: '^(src|functions)/', pathNot: '^src/postgres/' },
      to: { path: 'node_modules/(pg|@neondatabase|ws)/' },
    },
    {
      name: 'only-lambda-knows-lambda',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/lambda/' },
      to: { path: 'node_modules/(@types/aws-lambda|hono/dist/adapter|@aws-lambda-powertools)' },
    },
    {
      name: 'lambda-is-the-top',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/lambda/' },
      to: { path: '^src/lambda/' },
    },
    {
      name: 'only-lambda-reads-the-environment',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/(lambda/|index\\.ts)' },
      to: { path: '^src/settings\\.ts$' },
    },
    {
      name: 'postgres-is-the-bottom',
      severity: 'error',
      from: { path: '^src/postgres/' },
      to: { path: '^src/(?!postgres/|run\\.ts)' },
    },
    {
      name: 'http-starts-runs-by-message-only',
      severity: 'error',
      from: { path: '^src/http/' },
      to: { path: '^src/coordinate\\.ts$|' + step },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    exclude: { path: '^infra/cli/template/' },
    tsConfig: { fileName: 'tsconfig.json' },
    tsPreCompilationDeps: true,
    enhancedResolveOptions: { conditionNames: ['import', 'types', 'node', 'default'] },
  },
};
