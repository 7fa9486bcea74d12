"""The commands of mq-admin, one module for each group, imported when it is used."""
