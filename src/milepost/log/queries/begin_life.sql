insert into :"schema".server_life (token) values (gen_random_uuid()) on conflict do nothing
