-- Strikes what a job owes no more: the slot has succeeded or come to an end for good, was turned away for good, or a later
-- run stands for it. A delivery that was held or paused ends nothing; nor does a slot's being missed, which is no try.
CREATE OR REPLACE FUNCTION cronce.pay(deployment text, job text) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  UPDATE cronce.run d SET paid = true
  WHERE d.deployment = pay.deployment AND d.job = pay.job AND d.final = false AND NOT d.paid
    AND EXISTS (
      SELECT FROM cronce.run l
      WHERE l.deployment = d.deployment AND l.job = d.job AND l.slot = d.slot AND l.id <> d.id
        AND (l.status = 'succeeded' OR l.final
             OR (l.id > d.id AND l.status <> 'missed'
                 AND (l.final = false OR l.skip_reason IN ('duplicate', 'too_late', 'on_hold', 'off_schedule')))))
$$;
