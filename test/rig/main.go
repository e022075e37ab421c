// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	ctrl "sigs.k8s.io/controller-runtime"
)

// asController makes a test program run as a controller.
const asController = "DROVER_TEST_AS_CONTROLLER"

// atOnce is how many tests run at a time: they wait most of the time, so they
// can be more than there are CPUs.
const atOnce = "6"

// Main runs a package's tests. Every TestMain that uses this package must call it,
// because it also makes the test program a controller where a test needs one in a
// process of its own. before, if any, runs first.
func Main(m *testing.M, before func() (after func() error, err error)) int {
	if os.Getenv(asController) != "" {
		return controllerMain()
	}
	log := &tail{}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log), textlogger.Verbosity(1)))
	klog.SetLogger(logger)
	ctrl.SetLogger(logger)
	code := run(m, before)
	if code != 0 {
		fmt.Fprintf(os.Stderr, "the controllers in this process logged:\n%s", log)
	}
	return code
}

func run(m *testing.M, before func() (func() error, error)) int {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f != nil && f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", atOnce)
	}
	if before == nil {
		return m.Run()
	}
	after, err := before()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := after(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// tail keeps the end of a log.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const tailSize = 256 << 10

func (l *tail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf.Len() > tailSize {
		keep := strings.Clone(l.buf.String()[l.buf.Len()-tailSize/2:])
		l.buf.Reset()
		l.buf.WriteString(keep)
	}
	return l.buf.Write(p)
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
