// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"

	"gopkg.in/natefinch/lumberjack.v2"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/etcdlog"
)

// logging sends the logs of all components, such as etcd and kube-apiserver, to one
// file, to keep the terminal readable.
type logging struct {
	writer io.WriteCloser
	dir    *datadir.Dir
}

func startLogging(ctx context.Context, dir *datadir.Dir, verbosity int) *logging {
	// Otherwise kube-controller-manager refuses to start, because kube-apiserver in the
	// same process has already set up logging.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	l := &logging{
		dir:    dir,
		writer: &lumberjack.Logger{Filename: dir.LogFile(), MaxSize: 20, MaxBackups: 3},
	}
	etcdlog.SetOutput(l.writer)
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	_ = flags.Set("v", strconv.Itoa(verbosity))
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(l.writer), textlogger.Verbosity(verbosity)))
	klog.SetLoggerWithOptions(logger, klog.ContextualLogger(true))
	klog.OsExit = func(int) { l.klogFatal(ctx) }
	return l
}

// klogFatal is called where Kubernetes' code cannot continue. If Drover is being stopped, for
// example while it still starts, that is expected and not reported: the component ends, or its
// goroutine blocks until the process exits, and the components that were started before it
// still have to be closed properly.
func (l *logging) klogFatal(ctx context.Context) {
	if ctx.Err() != nil {
		select {}
	}
	l.reportFatal("a Kubernetes component", errors.New("fatal error"))
}

// reportFatal reports in one line that a component cannot continue, and ends the process.
func (l *logging) reportFatal(name string, err error) {
	_, _ = fmt.Fprintf(printable.NewWriter(os.Stderr), "drover: %s gave up: %v (see %s for details)\n", name, l.dir.ExplainError(err), l.dir.LogFile())
	l.close()
	os.Exit(1)
}

func (l *logging) close() {
	klog.Flush()
	_ = l.writer.Close()
}
