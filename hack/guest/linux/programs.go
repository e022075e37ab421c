// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// programs are the programs that the guest agent can run: the init under other names.
var programs = map[string]func(args []string) error{
	"echo": func(args []string) error {
		_, err := fmt.Println(strings.Join(args, " "))
		return err
	},
	"warn": func(args []string) error {
		_, err := fmt.Fprintln(os.Stderr, strings.Join(args, " "))
		return err
	},
	"cat": func([]string) error {
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	},
	"exit": func(args []string) error {
		code, err := strconv.Atoi(args[0])
		if err == nil {
			os.Exit(code)
		}
		return err
	},
	"kill": func(args []string) error {
		pid, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		return syscall.Kill(pid, syscall.SIGTERM)
	},
	"die": func([]string) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return err
		}
		select {}
	},
	"sleep": func([]string) error {
		<-time.After(time.Hour)
		return nil
	},
	"print": func(args []string) error { // so many MiB
		n, err := strconv.Atoi(args[0])
		for range n {
			_, _ = os.Stdout.WriteString(strings.Repeat("x", 1<<20))
		}
		return err
	},
}

// installPrograms gives the init its other names.
func installPrograms() error {
	if err := os.MkdirAll("/bin", 0o750); err != nil {
		return err
	}
	for name := range programs {
		if err := os.Symlink("/init", filepath.Join("/bin", name)); err != nil {
			return err
		}
	}
	return os.Setenv("PATH", "/bin")
}

// runProgram runs the program of this process's name.
func runProgram() {
	if err := programs[filepath.Base(os.Args[0])](os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
