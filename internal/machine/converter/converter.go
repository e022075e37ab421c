// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package converter converts container images to the roots of machines in a process that can do
// nothing else, since all that it reads comes from strangers. The process is drover-machine, which
// is started confined, as a separate user if Drover is root. It gets the layers over a pipe, sends its output over
// another one, and can open, connect, start and signal nothing.
//
// Start with Converter.Convert. Main (main.go) is the process. What is converted and how is in
// package rootfs.
package converter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/image/erofs"
	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/internal/machine/confine"
)

// Command is the argument of the program.
const Command = "convert-image"

// Descriptors of the program, beside the standard streams: the layers arrive on its standard input,
// and the result goes to its standard output. The writes to the root go to outputFD.
const (
	outputFD = iota + 3
	programFD
)

const (
	// maxResult and maxErrors bound how much of the program's output is read.
	maxResult = 16 << 10
	maxErrors = 4 << 10
	// pipeSize is how much the program may be behind.
	pipeSize = 1 << 20
)

// Converter starts the program.
type Converter struct {
	// Program returns the program, which is executed by its descriptor.
	Program func() (*os.File, error)
	// StartAs calls start with the user that the program runs as; nil means the user of this program.
	StartAs func(startProgram func(*confine.User) error) error
}

// Convert is an image.Converter. What it returns is a claim of the program, which an image may have
// taken over. The program ends with ctx, and with the first failure of its input or output.
func (c Converter) Convert(ctx context.Context, request rootfs.Request, open rootfs.Open, out erofs.File) (rootfs.Result, error) {
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var p pipes
	defer p.closePipes()
	if err := p.openPipes(); err != nil {
		return rootfs.Result{}, &rootfs.ConverterError{Err: err}
	}
	result, printed := &boundedBuffer{limit: maxResult}, &boundedBuffer{limit: maxErrors}
	cmd, err := c.startProgram(ctx, streams{p.layers, result, printed, p.changes})
	p.closeTheirs()
	if err != nil {
		return rootfs.Result{}, err
	}
	received := make(chan error, 1)
	go func() {
		err := rootfs.Receive(p.changed, out, request.MaxSize)
		if err != nil {
			cancel(rootfs.ErrStopped)
		}
		received <- err
	}()
	sent := rootfs.Send(p.sent, request, func(number int) (io.ReadCloser, error) { return openWithin(ctx, open, number) })
	if sent != nil && !errors.Is(sent, rootfs.ErrStopped) {
		cancel(nil)
	}
	_ = p.sent.Close()
	ended := outcome{sent: sent, exit: cmd.Wait(), received: <-received, cancelled: caller.Err(), printed: printed}
	if err := ended.failureCause(); err != nil {
		return rootfs.Result{}, err
	}
	made, err := parseResult(result.Bytes())
	if err == nil && sent != nil && made.Reason == "" {
		err = &rootfs.ConverterError{Err: errors.New("it has not read all layers")}
	}
	return made, err
}

// outcome is how a program has ended, and how its input and output have.
type outcome struct {
	sent, exit, received, cancelled error
	printed                         *boundedBuffer
}

// failureCause returns why the program's result does not count, nil if it does.
func (o outcome) failureCause() error {
	if failed, ok := errors.AsType[*rootfs.WriteError](o.received); ok {
		return failed
	}
	stopped := o.sent == nil || errors.Is(o.sent, rootfs.ErrStopped)
	switch {
	case o.received != nil && !errors.Is(o.received, io.ErrUnexpectedEOF):
		return &rootfs.ConverterError{Err: o.received}
	case o.cancelled != nil && stopped:
		return o.cancelled
	case !stopped:
		return o.sent
	case o.exit != nil:
		return &rootfs.ConverterError{Err: fmt.Errorf("%w: %s", o.exit, o.printed.firstLine())}
	case o.received != nil:
		return &rootfs.ConverterError{Err: o.received}
	}
	return nil
}

// openWithin opens a layer that cannot be read any more once ctx has ended.
func openWithin(ctx context.Context, open rootfs.Open, number int) (io.ReadCloser, error) {
	blob, err := open(number)
	return within{ctx, blob}, err
}

type within struct {
	ctx context.Context
	io.ReadCloser
}

// Read implements io.Reader.
func (w within) Read(p []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	return w.ReadCloser.Read(p)
}

// pipes lead to the program and back: layers that were sent, and changes of the output.
type pipes struct{ layers, sent, changed, changes *os.File }

func (p *pipes) openPipes() (err error) {
	if p.layers, p.sent, err = os.Pipe(); err != nil {
		return err
	}
	if p.changed, p.changes, err = os.Pipe(); err != nil {
		return err
	}
	for _, pipe := range []*os.File{p.sent, p.changes} {
		_, _ = unix.FcntlInt(pipe.Fd(), unix.F_SETPIPE_SZ, pipeSize) // which is faster, and may be denied
	}
	return nil
}

// closeTheirs closes the ends that the program has.
func (p *pipes) closeTheirs() { _, _ = p.layers.Close(), p.changes.Close() }

func (p *pipes) closePipes() {
	p.closeTheirs()
	_, _ = p.sent.Close(), p.changed.Close()
}

func parseResult(text []byte) (rootfs.Result, error) {
	var r rootfs.Result
	if err := json.Unmarshal(text, &r); err != nil {
		return r, &rootfs.ConverterError{Err: fmt.Errorf("its result cannot be read: %w", err)}
	}
	return r, nil
}

// streams are the streams that the program reads and writes.
type streams struct {
	in              io.Reader
	result, printed io.Writer
	out             *os.File
}

// startProgram starts the program, confined.
func (c Converter) startProgram(ctx context.Context, s streams) (*exec.Cmd, error) {
	program, err := c.Program()
	if err != nil {
		return nil, &rootfs.ConverterError{Err: err}
	}
	startAs := c.StartAs
	if startAs == nil {
		startAs = func(start func(*confine.User) error) error { return start(nil) }
	}
	var cmd *exec.Cmd
	err = startAs(func(user *confine.User) error {
		var policy confine.Policy
		cmd, policy = confine.CommandOf(ctx, program, "drover-machine", []*os.File{s.out}, Rights, Command)
		policy.User = user
		cmd.Env = append(cmd.Env, "GOMAXPROCS=2", "GOMEMLIMIT="+memoryLimit)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = s.in, s.result, s.printed
		return confine.Start(cmd, policy)
	})
	if err != nil {
		return nil, &rootfs.ConverterError{Err: fmt.Errorf("starting it: %w", err)}
	}
	return cmd, nil
}

// boundedBuffer keeps the beginning of the bytes that are written to it.
type boundedBuffer struct {
	bytes.Buffer

	limit int
}

// Write implements io.Writer.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), b.limit-b.Len())])
	return len(p), nil
}

// firstLine returns the first line of a program's output, for people.
func (b *boundedBuffer) firstLine() string {
	line, _, _ := strings.Cut(b.String(), "\n")
	return fmt.Sprintf("%.200q", line)
}
