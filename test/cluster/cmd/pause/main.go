// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command pause keeps the namespaces of a pod alive: it sleeps until it is killed.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
}
