module example.com/receivers

go 1.26.0
