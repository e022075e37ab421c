// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package converter converts container images to root file systems of machines. Images are not trusted,
// so it does that in a confined process, drover-machine, which runs as a separate user if Drover is root.
// The process receives the layers over a pipe, and sends its output over another one. It cannot open
// files, connect, start programs or send signals.
//
// Start with Converter.Convert. Main (main.go) runs in the process. Package rootfs has the conversion
// itself.
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

// Command is the argument of drover-machine that runs Main.
const Command = "convert-image"

// Descriptors of the process. outputFD receives the content of the root file system. The layers arrive on
// standard input, and the result goes to standard output.
const (
	outputFD = iota + 3
	programFD
)

const (
	// maxResult and maxErrors bound how much of standard output and standard error is kept.
	maxResult = 16 << 10
	maxErrors = 4 << 10
	// pipeSize is how many bytes each pipe buffers.
	pipeSize = 1 << 20
)

// Converter converts images.
type Converter struct {
	// Program returns drover-machine, which is executed through its descriptor.
	Program func() (*os.File, error)
	// StartAs calls startProgram with the user that the process runs as; nil means the user of this program.
	StartAs func(startProgram func(*confine.User) error) error
}

// Convert is an image.Converter. The caller must check the result, since an image may have taken over the
// process. The process ends with ctx, and with the first failure of its input or output.
func (c Converter) Convert(ctx context.Context, request rootfs.Request, open rootfs.Open, out erofs.File) (rootfs.Result, error) {
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var p pipes
	defer p.closePipes()
	if err := p.openPipes(); err != nil {
		return rootfs.Result{}, &rootfs.ConverterError{Err: err}
	}
	result, errorText := &boundedBuffer{limit: maxResult}, &boundedBuffer{limit: maxErrors}
	cmd, err := c.startProgram(ctx, streams{p.layersReader, result, errorText, p.outputWriter})
	p.closeInherited()
	if err != nil {
		return rootfs.Result{}, err
	}
	received := make(chan error, 1)
	go func() {
		err := rootfs.Receive(p.outputReader, out, request.MaxSize)
		if err != nil {
			cancel(rootfs.ErrStopped)
		}
		received <- err
	}()
	sendErr := rootfs.Send(p.layersWriter, request, func(number int) (io.ReadCloser, error) { return openWithContext(ctx, open, number) })
	if sendErr != nil && !errors.Is(sendErr, rootfs.ErrStopped) {
		cancel(nil)
	}
	_ = p.layersWriter.Close()
	ended := outcome{sendErr: sendErr, exitErr: cmd.Wait(), receiveErr: <-received, callerErr: caller.Err(), errorText: errorText}
	if err := ended.failureCause(); err != nil {
		return rootfs.Result{}, err
	}
	parsed, err := parseResult(result.Bytes())
	if err == nil && sendErr != nil && parsed.Reason == "" {
		err = &rootfs.ConverterError{Err: errors.New("the process has not read all layers")}
	}
	return parsed, err
}

// outcome has the errors of a process, of its input and output, and of the caller's context.
type outcome struct {
	sendErr, exitErr, receiveErr, callerErr error
	errorText                               *boundedBuffer
}

// failureCause returns why the process's result is not used, nil if it is. One failure often causes others, so it
// looks for the first cause.
func (o outcome) failureCause() error {
	if failed, ok := errors.AsType[*rootfs.WriteError](o.receiveErr); ok {
		return failed
	}
	layersAreGood := o.sendErr == nil || errors.Is(o.sendErr, rootfs.ErrStopped)
	switch {
	case o.receiveErr != nil && !errors.Is(o.receiveErr, io.ErrUnexpectedEOF):
		return &rootfs.ConverterError{Err: o.receiveErr}
	case o.callerErr != nil && layersAreGood:
		return o.callerErr
	case !layersAreGood:
		return o.sendErr
	case o.exitErr != nil:
		return &rootfs.ConverterError{Err: fmt.Errorf("%w: %s", o.exitErr, o.errorText.firstLine())}
	case o.receiveErr != nil:
		return &rootfs.ConverterError{Err: o.receiveErr}
	}
	return nil
}

// openWithContext opens a layer. Reading it fails once ctx has ended.
func openWithContext(ctx context.Context, open rootfs.Open, number int) (io.ReadCloser, error) {
	blob, err := open(number)
	return contextReader{ctx, blob}, err
}

type contextReader struct {
	ctx context.Context
	io.ReadCloser
}

// Read implements io.Reader.
func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.ReadCloser.Read(p)
}

// pipes are the pipes to the process, for layers, and back, for the root file system.
type pipes struct{ layersReader, layersWriter, outputReader, outputWriter *os.File }

func (p *pipes) openPipes() (err error) {
	if p.layersReader, p.layersWriter, err = os.Pipe(); err != nil {
		return err
	}
	if p.outputReader, p.outputWriter, err = os.Pipe(); err != nil {
		return err
	}
	for _, pipe := range []*os.File{p.layersWriter, p.outputWriter} {
		_, _ = unix.FcntlInt(pipe.Fd(), unix.F_SETPIPE_SZ, pipeSize) // faster, but a limit may deny it
	}
	return nil
}

// closeInherited closes the ends that the process has inherited.
func (p *pipes) closeInherited() { _, _ = p.layersReader.Close(), p.outputWriter.Close() }

func (p *pipes) closePipes() {
	p.closeInherited()
	_, _ = p.layersWriter.Close(), p.outputReader.Close()
}

func parseResult(text []byte) (rootfs.Result, error) {
	var r rootfs.Result
	if err := json.Unmarshal(text, &r); err != nil {
		return r, &rootfs.ConverterError{Err: fmt.Errorf("decoding the result of the process: %w", err)}
	}
	return r, nil
}

// streams are the streams of the process: standard streams, and outputFD.
type streams struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	output         *os.File
}

// startProgram starts the confined process.
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
		cmd, policy = confine.CommandOf(ctx, program, "drover-machine", []*os.File{s.output}, Rights, Command)
		policy.User = user
		cmd.Env = append(cmd.Env, "GOMAXPROCS=2", "GOMEMLIMIT="+memoryLimit)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = s.stdin, s.stdout, s.stderr
		return confine.Start(cmd, policy)
	})
	if err != nil {
		return nil, &rootfs.ConverterError{Err: fmt.Errorf("starting the process: %w", err)}
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

// firstLine returns the first line in quotes, at most 200 bytes of it.
func (b *boundedBuffer) firstLine() string {
	line, _, _ := strings.Cut(b.String(), "\n")
	return fmt.Sprintf("%.200q", line)
}
