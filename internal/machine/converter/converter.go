// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package converter converts container images to the roots of machines in a process that can do
// nothing else, since all that it reads comes from strangers. The process is drover-machine, which
// is started confined, as a user of its own if Drover is root. It gets the layers by a pipe and the
// file that it writes as a descriptor, and can open, connect, start and signal nothing.
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
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/internal/machine/confine"
)

// Command is the first argument of the program. The second is how many bytes its output may have.
const Command = "convert-image"

// Descriptors of the program, beside the standard streams: the layers come by its standard input,
// and the result goes to its standard output.
const (
	outputFD = iota + 3
	programFD
)

const (
	// maxResult and maxErrors are how much is read of what the program writes.
	maxResult = 16 << 10
	maxErrors = 4 << 10
	// pipeSize is how much the program may be behind.
	pipeSize = 1 << 20
)

// Converter starts the program.
type Converter struct {
	// Program returns the program, which is executed by its descriptor.
	Program func() (*os.File, error)
	// StartAs calls start with the user that the program runs as; nil means this program's own.
	StartAs func(start func(*confine.User) error) error
}

// Convert is an image.Converter. What it returns is a claim of the program, which an image may have
// taken over. The program ends with ctx.
func (c Converter) Convert(ctx context.Context, order rootfs.Order, open rootfs.Open, out *os.File) (rootfs.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, to, err := os.Pipe()
	if err != nil {
		return rootfs.Result{}, &rootfs.ConverterError{Err: err}
	}
	defer func() { _ = to.Close() }()
	_, _ = unix.FcntlInt(to.Fd(), unix.F_SETPIPE_SZ, pipeSize) // which is faster, and may be denied
	result, printed := &boundedBuffer{limit: maxResult}, &boundedBuffer{limit: maxErrors}
	cmd, err := c.start(ctx, streams{from, result, printed, out}, order.MaxSize)
	_ = from.Close()
	if err != nil {
		return rootfs.Result{}, err
	}
	sent := rootfs.Send(to, order, open)
	if sent != nil && !errors.Is(sent, rootfs.ErrStopped) {
		cancel()
	}
	_ = to.Close()
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil && (sent == nil || errors.Is(sent, rootfs.ErrStopped)):
		return rootfs.Result{}, ctx.Err()
	case sent != nil && !errors.Is(sent, rootfs.ErrStopped):
		return rootfs.Result{}, sent
	case err != nil:
		return rootfs.Result{}, &rootfs.ConverterError{Err: fmt.Errorf("%w: %s", err, printed.firstLine())}
	}
	made, err := parseResult(result.Bytes())
	if err == nil && sent != nil && made.Reason == "" {
		err = &rootfs.ConverterError{Err: errors.New("it has not read all layers")}
	}
	return made, err
}

func parseResult(text []byte) (rootfs.Result, error) {
	var r rootfs.Result
	if err := json.Unmarshal(text, &r); err != nil {
		return r, &rootfs.ConverterError{Err: fmt.Errorf("its result cannot be read: %w", err)}
	}
	return r, nil
}

// streams are what the program reads and writes.
type streams struct {
	in              io.Reader
	result, printed io.Writer
	out             *os.File
}

// start starts the program, confined.
func (c Converter) start(ctx context.Context, s streams, maxSize int64) (*exec.Cmd, error) {
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
		cmd, policy = confine.CommandOf(ctx, program, "drover-machine", []*os.File{s.out}, Command, strconv.FormatInt(maxSize, 10))
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

// boundedBuffer keeps the beginning of what is written to it.
type boundedBuffer struct {
	bytes.Buffer

	limit int
}

// Write implements io.Writer.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), b.limit-b.Len())])
	return len(p), nil
}

// firstLine returns the first line of what a program printed, for people.
func (b *boundedBuffer) firstLine() string {
	line, _, _ := strings.Cut(b.String(), "\n")
	return fmt.Sprintf("%.200q", line)
}
