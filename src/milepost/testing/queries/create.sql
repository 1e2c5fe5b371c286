create schema :"schema"
