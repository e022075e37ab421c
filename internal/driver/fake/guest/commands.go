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
	on *screen

	mu   sync.Mutex
	over bool // nothing more may be written
}

// commands are the commands that a simulated server can run.
var commands = map[string]func(x *execution, ctx context.Context, args []string) (exitCode int, err error){
	"cat":  (*execution).cat,
	"echo": func(x *execution, _ context.Context, args []string) (int, error) { return x.print(x.Stdout, args) },
	"exit": func(_ *execution, _ context.Context, args []string) (int, error) { return exitCodeIn(args) },
	"log":  (*execution).log,
	"true": func(*execution, context.Context, []string) (int, error) { return 0, nil },
	"warn": func(x *execution, _ context.Context, args []string) (int, error) { return x.print(x.Stderr, args) },
}

// Exec implements driver.Executor. The commands are: true, exit CODE, echo and warn (on standard
// error), log (on the console), and cat. They cannot have a terminal.
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
	x := &execution{Command: r, on: screenOf(s)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer x.end()
	type result struct {
		exitCode int
		err      error
	}
	results := make(chan result, 1)
	go func() { // it stays with a Read of the caller's that does not return
		exitCode, err := commands[r.Args[0]](x, ctx, r.Args[1:])
		results <- result{exitCode, err}
	}()
	select {
	case end := <-results:
		return end.exitCode, end.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// end keeps a command that goes on from writing to a caller that has left.
func (x *execution) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
}

func (x *execution) write(to io.Writer, p []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.over:
		return os.ErrClosed
	case to == nil:
		return nil
	}
	_, err := to.Write(p)
	return err
}

func (x *execution) print(to io.Writer, words []string) (int, error) {
	return 0, x.write(to, []byte(strings.Join(words, " ")+"\n"))
}

func (x *execution) log(_ context.Context, words []string) (int, error) {
	x.on.print([]byte(strings.Join(words, " ") + "\n"))
	return 0, nil
}

func (x *execution) cat(context.Context, []string) (int, error) {
	if x.Stdin == nil {
		return 0, nil
	}
	buffer := make([]byte, 32<<10)
	for {
		n, failed := x.Stdin.Read(buffer)
		if err := x.write(x.Stdout, buffer[:n]); err != nil || failed != nil {
			return 0, err
		}
	}
}

// exitCodeIn returns the only argument, 0 without one.
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
