/** The plugin for `plugins:` of serverless.yml; the framework makes it. */
declare const CroncePlugin: new (serverless: object, options: object) => object;
export = CroncePlugin;
