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

// logging sends the log lines of all parts to one file, to keep the terminal
// readable.
type logging struct {
	writer io.WriteCloser
	dir    *datadir.Dir
}

func startLogging(ctx context.Context, dir *datadir.Dir, verbosity int) *logging {
	// kube-controller-manager would refuse to run beside kube-apiserver, which
	// has set up logging too.
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

// klogFatal is called where Kubernetes' code cannot continue. During a stop, for example
// in the middle of a start, that is expected and not reported: the part ends or is left
// behind, and the parts started before it still have to be closed properly.
func (l *logging) klogFatal(ctx context.Context) {
	if ctx.Err() != nil {
		select {}
	}
	l.reportFatal("a part of Kubernetes", errors.New("it cannot continue"))
}

// reportFatal reports in one line that a part cannot continue, and ends the process.
func (l *logging) reportFatal(name string, err error) {
	_, _ = fmt.Fprintf(printable.NewWriter(os.Stderr), "drover: %s gave up: %v (more in %s)\n", name, l.dir.Describe(err), l.dir.LogFile())
	l.close()
	os.Exit(1)
}

func (l *logging) close() {
	klog.Flush()
	_ = l.writer.Close()
}
