-- Rows such as those of HttpArena's database, for the test of this folder.
create table items (id integer primary key, name text not null, category text not null,
                    price integer not null, quantity integer not null, active boolean not null,
                    tags jsonb not null, rating_score integer not null,
                    rating_count integer not null);
insert into items
  select id, 'Thing ' || id, 'tools', 1 + id * 7919 % 500, id % 20, id % 2 = 0,
         '["fast", "new"]', id % 50, id % 300
  from generate_series(1, 5000) as id;
