// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"bytes"
	"errors"
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

// ControllerEnv makes a test program run as a controller.
const ControllerEnv = "DROVER_TEST_AS_CONTROLLER"

// parallelTests is how many tests run at a time. It can be more than the number of
// CPUs, because tests mostly wait.
const parallelTests = "6"

// RunTests runs a package's tests. Every TestMain that uses this package must call it,
// because it also makes the test program a controller where a test needs one in a
// separate process. before, if any, runs first.
func RunTests(m *testing.M, before func() (after func() error, err error)) int {
	if os.Getenv(ControllerEnv) != "" {
		return runController()
	}
	log := &logTail{}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log), textlogger.Verbosity(1)))
	klog.SetLogger(logger)
	ctrl.SetLogger(logger)
	code := runTests(m, before)
	if code != 0 {
		fmt.Fprintf(os.Stderr, "the controllers in this process logged:\n%s", log)
	}
	return code
}

func runTests(m *testing.M, before func() (func() error, error)) int {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f != nil && f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", parallelTests)
	}
	after := func() error { return nil }
	if before != nil {
		var err error
		if after, err = before(); err != nil {
			fmt.Fprintln(os.Stderr, "--- FAIL: before the tests:", err)
			return 1
		}
	}
	code := m.Run()
	if err := errors.Join(after(), closeVirtual()); err != nil {
		fmt.Fprintln(os.Stderr, "--- FAIL: after the tests:", err)
		return max(code, 1)
	}
	return code
}

// logTail keeps the end of a log.
type logTail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const maxTailSize = 256 << 10

func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf.Len() > maxTailSize {
		keep := strings.Clone(l.buf.String()[l.buf.Len()-maxTailSize/2:])
		l.buf.Reset()
		l.buf.WriteString(keep)
	}
	return l.buf.Write(p)
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
