// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"io"
	"net/url"
	"path"
	"strings"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
)

// serveExec runs a command in the server.
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
	return c.serveWebSocket(func(s *session) error {
		code, err := executor.Exec(c.ctx, c.vm.UID, o.newCommand(s))
		if err != nil {
			return err
		}
		return exitError(code)
	})
}

// execOptions are the parameters of a command, with the names of pods/exec.
type execOptions struct {
	command, env               []string
	user, workingDir           string
	stdin, stdout, stderr, tty bool
}

// readExecOptions reads the parameters of a command from the URL.
func readExecOptions(query url.Values) (execOptions, error) {
	p := parameters{Values: query}
	o := execOptions{
		command: p.Values["command"], env: p.Values["env"], user: p.Get("user"), workingDir: p.Get("workdir"),
		stdin: p.readFlag("stdin"), stdout: p.readFlag("stdout"), stderr: p.readFlag("stderr"), tty: p.readFlag("tty"),
	}
	switch {
	case p.err != nil:
	case len(o.command) == 0 || o.command[0] == "":
		p.err = badRequest("parameter command is missing: it must be given for the program, and again for each argument")
	case !o.stdin && !o.stdout && !o.stderr:
		p.err = badRequest("none of the parameters stdin, stdout and stderr is true: at least one must be true")
	}
	if p.err == nil {
		p.err = o.checkSettings()
	}
	return o, p.err
}

// checkSettings refuses what no server could be given. It does not print variables, which may be secret.
func (o execOptions) checkSettings() error {
	for _, entry := range o.env {
		if name, _, ok := strings.Cut(entry, "="); !ok || name == "" || strings.ContainsRune(entry, 0) {
			return badRequest("parameter env has a variable without the form NAME=VALUE, or with a NUL character")
		}
	}
	if o.workingDir != "" && !path.IsAbs(o.workingDir) {
		return badRequest("parameter workdir is %.70q: it must be an absolute path", o.workingDir)
	}
	return nil
}

// newCommand returns the command with the requested channels of the session as its input and output.
func (o execOptions) newCommand(s *session) terminal.Command {
	r := terminal.Command{Args: o.command, Env: o.env, User: o.user, WorkingDir: o.workingDir, Stdout: io.Discard, Stderr: io.Discard, TTY: o.tty}
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
