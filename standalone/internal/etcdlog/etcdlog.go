// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package etcdlog keeps the log lines of kube-apiserver's client of etcd off the terminal. That
// client makes its logger while its package is initialised, to write JSON to the standard error,
// and no setting changes that.
//
// So this package changes etcd's defaults before: of packages whose own imports are initialised,
// Go initialises the one with the lowest import path first, and this one imports little.
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

// SetOutput has the lines written to a log. Those before are dropped.
func SetOutput(writer io.Writer) {
	output.mu.Lock()
	defer output.mu.Unlock()
	output.to = writer
}

// sink implements zap.Sink.
type sink struct {
	mu sync.Mutex
	to io.Writer
}

// Write writes a line.
func (s *sink) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to == nil {
		return len(line), nil
	}
	return s.to.Write(line)
}

// Sync does nothing: the log belongs to others.
func (*sink) Sync() error { return nil }

// Close does nothing.
func (*sink) Close() error { return nil }
