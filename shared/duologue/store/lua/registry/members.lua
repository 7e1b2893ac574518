-- No ARGV. Everybody who has not expired; writes nothing.
return { 0, live(now_ms()) }
