// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
)

// execution is a command that runs.
type execution struct {
	terminal.Command
	console *screen

	mu             sync.Mutex
	isOutputClosed bool
}

// commands are the commands that a simulated server can run.
var commands = map[string]func(x *execution, ctx context.Context, args []string) (exitCode int, err error){
	"cat":  (*execution).copyInput,
	"echo": func(x *execution, _ context.Context, args []string) (int, error) { return x.printLine(x.Stdout, args) },
	"exit": func(_ *execution, _ context.Context, args []string) (int, error) { return exitCodeIn(args) },
	"log":  (*execution).printOnConsole,
	"true": func(*execution, context.Context, []string) (int, error) { return 0, nil },
	"warn": func(x *execution, _ context.Context, args []string) (int, error) { return x.printLine(x.Stderr, args) },
}

// Exec implements driver.Executor. The commands are: true, exit CODE, cat, and three that print
// their arguments: echo to stdout, warn to stderr, log to the console. Terminals are unsupported.
func (a *Access) Exec(ctx context.Context, uid types.UID, r terminal.Command) (exitCode int, err error) {
	s, err := a.findRunning(ctx, uid)
	if err != nil {
		return 0, err
	}
	if len(r.Args) == 0 || r.Args[0] == "" {
		return 0, driver.Errorf(driver.ErrInvalid, "command is empty: it must be a program and its arguments")
	}
	if commands[r.Args[0]] == nil {
		return 0, driver.Errorf(driver.ErrCommandNotFound, "command is %.100q: a simulated server has cat, echo, exit, log, true and warn", r.Args)
	}
	if r.TTY {
		return 0, driver.Errorf(driver.ErrUnsupported, "a simulated server does not give commands a terminal")
	}
	x := &execution{Command: r, console: screenOf(s)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer x.closeOutput()
	type result struct {
		exitCode int
		err      error
	}
	results := make(chan result, 1)
	go func() { // this outlasts Exec if a Read of the caller's Stdin does not return
		exitCode, err := commands[r.Args[0]](x, ctx, r.Args[1:])
		results <- result{exitCode, err}
	}()
	select {
	case r := <-results:
		return r.exitCode, r.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// closeOutput makes later writes fail, since the writers belong to a caller that has returned.
func (x *execution) closeOutput() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.isOutputClosed = true
}

func (x *execution) writeOutput(output io.Writer, p []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.isOutputClosed:
		return os.ErrClosed
	case output == nil:
		return nil
	}
	_, err := output.Write(p)
	return err
}

func (x *execution) printLine(output io.Writer, words []string) (int, error) {
	return 0, x.writeOutput(output, []byte(strings.Join(words, " ")+"\n"))
}

func (x *execution) printOnConsole(_ context.Context, words []string) (int, error) {
	x.console.print([]byte(strings.Join(words, " ") + "\n"))
	return 0, nil
}

func (x *execution) copyInput(context.Context, []string) (int, error) {
	if x.Stdin == nil {
		return 0, nil
	}
	buffer := make([]byte, 32<<10)
	for {
		n, readErr := x.Stdin.Read(buffer)
		if err := x.writeOutput(x.Stdout, buffer[:n]); err != nil || readErr != nil {
			return 0, err
		}
	}
}

// exitCodeIn returns the first argument as a number, or 0 without arguments.
func exitCodeIn(args []string) (int, error) {
	if len(args) == 0 {
		return 0, nil
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 0 || n > 255 {
		return 0, driver.Errorf(driver.ErrInvalid, "command has the argument %.20q: it must be a number from 0 to 255", args[0])
	}
	return n, nil
}
