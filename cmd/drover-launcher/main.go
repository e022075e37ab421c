// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover-launcher is /usr/bin/drover of the package. It starts within milliseconds, unlike drover. It executes
// the command drover login. For users who log in, it becomes kubectl-vm for drover vm; otherwise it becomes drover.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/internal/login"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		_, _ = fmt.Fprintf(printable.NewWriter(os.Stderr), "drover: %v\n", err)
		os.Exit(1)
	}
}

// run executes drover login, or replaces this process with the program of another command.
func run(args []string) error {
	client := login.NewClient(os.Getenv, clock.RealClock{})
	if len(args) == 1 && args[0] == "login" {
		return login.Run(client, os.Getenv, printable.NewWriter(os.Stdout))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program := filepath.Join(filepath.Dir(self), "..", "lib", "drover", "drover")
	if len(args) > 0 && args[0] == "vm" && client.IsDefault(os.Getenv) {
		program = filepath.Join(filepath.Dir(self), "kubectl-vm")
	}
	// The programs see the path of this one, so that they name it where they have others start them.
	err = syscall.Exec(program, append([]string{self}, args...), os.Environ()) //nolint:gosec // beside this program
	return fmt.Errorf("start %s: %w", program, err)
}
