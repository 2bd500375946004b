// The direction of imports, as docs/layout.md draws it: entries on top, vocabulary at the bottom.
const step = '^src/(claim|lock|work|outcome|publish)\\.ts$';

/** @type {import('dependency-cruiser').IConfiguration} */
module.exports = {
  forbidden: [
    { name: 'no-cycles', severity: 'error', from: {}, to: { circular: true } },
    {
      name: 'src-knows-no-entry',
      comment: 'functions/ and infra/ import src/, never the other way round',
      severity: 'error',
      from: { path: '^src/' },
      to: { path: '^(functions|infra|test)/' },
    },
    {
      name: 'product-knows-no-test',
      severity: 'error',
      from: { path: '^(functions|infra|src)/' },
      to: { path: '^test/' },
    },
    {
      name: 'steps-are-strangers',
      comment: 'each step keeps one secret; only coordinate.ts puts them in a row',
      severity: 'error',
      from: { path: step },
      to: { path: [step, '^src/(coordinate|sweep|history)\\.ts$', '^src/(http|jobs)/'] },
    },
    {
      name: 'vocabulary-has-no-io',
      severity: 'error',
      from: { path: '^src/run\\.ts$' },
      to: { path: ['^src/', '^node:'] },
    },
    {
      name: 'only-postgres-imports-a-driver',
      severity: 'error',
      from: { path: '^(src|functions)/', pathNot: '^src/postgres/' },
      to: { path: 'node_modules/(pg|@neondatabase|ws)/' },
    },
    {
      name: 'only-functions-know-lambda',
      severity: 'error',
      from: { path: '^src/' },
      to: { path: 'node_modules/(@types/aws-lambda|hono/dist/adapter|@aws-lambda-powertools)' },
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
      to: { path: '^src/(coordinate|claim|lock|work|outcome|publish)\\.ts$' },
    },
    {
      name: 'jobs-know-only-the-job-api',
      severity: 'error',
      from: { path: '^src/jobs/' },
      to: { path: '^src/(?!jobs/|job\\.ts|run\\.ts|index\\.ts)' },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    tsConfig: { fileName: 'tsconfig.json' },
    tsPreCompilationDeps: true,
    enhancedResolveOptions: { conditionNames: ['import', 'types', 'node', 'default'] },
  },
};
