;;; Hosts by which a page for this machine alone is asked for, and whether it is seen then.

("evil.example" nil) ("EVIL.EXAMPLE.:4242" nil) ("127.0.0.1.evil.example" nil)
("127.0.0.1:4242" t) ("[::1]:4242" t) ("[::ffff:127.0.0.1]" t) ("LOCALHOST:4242" t)
("Shop.LocalHost:4242" t) ("my-machine:4242" t)
