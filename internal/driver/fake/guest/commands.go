// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
)

// execution is a command that runs.
type execution struct {
	driver.ExecRequest
	access *Access
	on     *terminal

	mu   sync.Mutex
	size driver.TerminalSize
	over bool // nothing more may be written
}

// commands are what a simulated server can run.
var commands = map[string]func(x *execution, ctx context.Context, args []string) (exitCode int, err error){
	"cat":   (*execution).cat,
	"echo":  func(x *execution, _ context.Context, args []string) (int, error) { return x.print(x.Stdout, args) },
	"exit":  func(_ *execution, _ context.Context, args []string) (int, error) { return numberIn(args, 0) },
	"false": func(*execution, context.Context, []string) (int, error) { return 1, nil },
	"log":   (*execution).log,
	"size":  (*execution).showSize,
	"sleep": (*execution).sleep,
	"true":  func(*execution, context.Context, []string) (int, error) { return 0, nil },
	"warn":  func(x *execution, _ context.Context, args []string) (int, error) { return x.print(x.Stderr, args) },
}

// Exec implements driver.Executor. The commands are: true, false, exit CODE, sleep SECONDS,
// echo and warn (on standard error), log (on the console), cat, and size, which prints rows
// and columns of its terminal whenever it reads a line.
func (a *Access) Exec(ctx context.Context, uid types.UID, r driver.ExecRequest) (exitCode int, err error) {
	s, err := a.findRunning(ctx, uid)
	if err != nil {
		return 0, err
	}
	if len(r.Command) == 0 || r.Command[0] == "" {
		return 0, driver.Errorf(driver.ErrInvalid, "command is empty: it must be a program and its arguments")
	}
	if commands[r.Command[0]] == nil {
		return 0, driver.Errorf(driver.ErrCommandNotFound, "command is %.100q: a simulated server has cat, echo, exit, false, log, size, sleep, true and warn", r.Command)
	}
	x := &execution{ExecRequest: r, access: a, on: terminalOf(s)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer x.end()
	go x.followSize(ctx)
	type result struct {
		exitCode int
		err      error
	}
	results := make(chan result, 1)
	go func() { // it stays with a Read of the caller's that does not return
		exitCode, err := commands[r.Command[0]](x, ctx, r.Command[1:])
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

func (x *execution) sleep(ctx context.Context, args []string) (int, error) {
	seconds, err := numberIn(args, 1)
	if err != nil {
		return 0, err
	}
	return 0, kit.Pause(ctx, x.access.Clock, time.Duration(seconds)*time.Second)
}

// numberIn returns the only argument, a number that can be an exit code.
func numberIn(args []string, otherwise int) (int, error) {
	if len(args) == 0 {
		return otherwise, nil
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 0 || n > 255 {
		return 0, driver.Errorf(driver.ErrInvalid, "command has the argument %.20q: it must be a number from 0 to 255", args[0])
	}
	return n, nil
}

func (x *execution) followSize(ctx context.Context) {
	for {
		select {
		case size, open := <-x.Resize:
			if !open {
				return
			}
			x.mu.Lock()
			x.size = size
			x.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

func (x *execution) showSize(context.Context, []string) (int, error) {
	if x.Stdin == nil {
		return 0, nil
	}
	for lines := bufio.NewScanner(x.Stdin); lines.Scan(); {
		x.mu.Lock()
		text := fmt.Sprintf("%d %d", x.size.Height, x.size.Width)
		x.mu.Unlock()
		if _, err := x.print(x.Stdout, []string{text}); err != nil {
			return 0, err
		}
	}
	return 0, nil
}
