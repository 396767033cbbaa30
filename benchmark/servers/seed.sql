-- The rows that the workloads with a database read, the same each time.
create table items as
  select id, (array['Lamp', 'Ladder', 'Kettle', 'Chair'])[1 + id % 4] || ' ' || id as name,
         1 + id * 7919 % 500 as price
  from generate_series(1, 100000) as id;
alter table items add primary key (id);
create table fortunes (id integer primary key, message text not null);
insert into fortunes
  select id, 'A saying of some length, the ' || id || 'th of twelve'
  from generate_series(1, 10) as id;
insert into fortunes values
  (11, '<script>alert("This is never run.");</script>'),
  (12, 'Σοφία, мудрость, 知恵');
vacuum analyze;
