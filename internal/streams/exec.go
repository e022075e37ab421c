// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"io"
	"net/url"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
)

// serveExec runs a command.
func (c *call) serveExec() error {
	executor, err := capability[driver.Executor](c)
	if err != nil {
		return err
	}
	o, err := readExecOptions(c.r.URL.Query())
	if err != nil {
		return err
	}
	if err := checkHandshake(c.r, c.stream); err != nil {
		return err
	}
	return c.overWebSocket(func(s *session) error {
		code, err := executor.Exec(c.ctx, c.vm.UID, o.newRequest(s))
		if err != nil {
			return err
		}
		return exitCode(code)
	})
}

// execOptions are the parameters of pods/exec.
type execOptions struct {
	command                    []string
	stdin, stdout, stderr, tty bool
}

// readExecOptions reads the parameters of a command.
func readExecOptions(query url.Values) (execOptions, error) {
	p := parameters{Values: query}
	o := execOptions{
		command: p.Values["command"],
		stdin:   p.readFlag("stdin"), stdout: p.readFlag("stdout"), stderr: p.readFlag("stderr"), tty: p.readFlag("tty"),
	}
	switch {
	case p.err != nil:
	case len(o.command) == 0 || o.command[0] == "":
		p.err = badRequest("parameter command is missing: it must be the program, and again for each argument")
	case !o.stdin && !o.stdout && !o.stderr:
		p.err = badRequest("none of the parameters stdin, stdout and stderr is true: at least one must be")
	}
	return o, p.err
}

// newRequest connects the command to the channels that were asked for.
func (o execOptions) newRequest(s *session) terminal.Command {
	r := terminal.Command{Args: o.command, Stdout: io.Discard, Stderr: io.Discard, TTY: o.tty}
	if o.stdin {
		r.Stdin = s.stdin
	} else {
		_ = s.stdin.Close()
	}
	if o.stdout {
		r.Stdout = s.Writer(terminal.Output)
	}
	if o.stderr && !o.tty {
		r.Stderr = s.Writer(terminal.Errors)
	}
	if o.tty {
		r.Resize = s.sizes
	}
	return r
}
