// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package etcdlog keeps the log lines of kube-apiserver's etcd client off the terminal. The client's
// package creates its logger during its initialisation, writes JSON to the standard error, and does
// not have a setting for it.
//
// So this package changes etcd's defaults before that: among the packages whose imports are
// initialised, Go initialises the package with the lowest import path first. This package has such a
// path and few imports.
package etcdlog

import (
	"io"
	"net/url"
	"sync"

	"go.etcd.io/etcd/client/pkg/v3/logutil"
	"go.uber.org/zap"
)

const scheme = "drover"

var output sink

func init() {
	if err := zap.RegisterSink(scheme, func(*url.URL) (zap.Sink, error) { return &output, nil }); err != nil {
		panic(err) // the scheme is a constant, so a user cannot cause this error
	}
	logutil.DefaultZapLoggerConfig.OutputPaths = []string{scheme + ":"}
	logutil.DefaultZapLoggerConfig.ErrorOutputPaths = []string{scheme + ":"}
}

// SetOutput sets the writer for the lines. Earlier lines are dropped.
func SetOutput(writer io.Writer) {
	output.mu.Lock()
	defer output.mu.Unlock()
	output.writer = writer
}

// sink implements zap.Sink.
type sink struct {
	mu     sync.Mutex
	writer io.Writer
}

// Write writes a line.
func (s *sink) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer == nil {
		return len(line), nil
	}
	return s.writer.Write(line)
}

// Sync does nothing, since the caller of SetOutput owns the writer.
func (*sink) Sync() error { return nil }

// Close does nothing.
func (*sink) Close() error { return nil }
