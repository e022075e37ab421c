// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build faults

// Package crashpoint marks operations before and after which a process may crash, for
// the tests of test/faults. It is empty in a normal build: see none.go.
package crashpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The environment of a process.
const (
	// LearnEnv names a file to which a line is appended for every point that is reached. A line
	// with a leading "!" records a fault that has happened.
	LearnEnv = "DROVER_CRASHPOINT_LEARN"
	// releasedSuffix is appended to the name of the file of LearnEnv. A file with the resulting name
	// releases a held operation.
	releasedSuffix = ".released"
	// CrashEnv is the point at which the process ends: "<operation> <object>#<ordinal>/before",
	// or "/after". In place of /before there may be a fault: for a request, one of the faults for
	// Point.ChooseFault; for a call, one of callFaults. "/held" and a text hold the operation.
	CrashEnv = "DROVER_CRASHPOINT"
)

// maxHold is how long an operation is held at most, so that it ends even if the tests have ended
// without releasing it.
const maxHold, holdPeriod = time.Minute, 2 * time.Millisecond

// Point is one operation on one object. Its name contains how often the process has begun the
// operation on the object.
type Point struct{ name string }

// recorder counts and records the operations of this process.
type recorder struct {
	mu     sync.Mutex
	counts map[string]int
	names  map[string]string
	learn  *os.File
	crash  string
}

var points = sync.OnceValue(func() *recorder {
	r := &recorder{counts: map[string]int{}, names: map[string]string{}, crash: os.Getenv(CrashEnv)}
	if path := os.Getenv(LearnEnv); path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // The tests chose it.
		if err != nil {
			panic(err)
		}
		r.learn = f
	}
	return r
})

// NameObject sets the name that points show instead of a UID. Unlike the UID, the name is the same
// in every run.
func NameObject(uid, name string) {
	r := points()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names[uid] = name
}

// Begin marks the begin of an operation. If the object is an absolute path, the point shows its last
// two elements.
func Begin(operation, object string) Point {
	p := Point{points().nextPoint(operation, object)}
	crashAt(p.name + "/before")
	p.holdOperation()
	return p
}

// ChooseFault returns the fault among faults that must happen at the point, and records that it
// happens. It returns "" if none of them must happen.
func (p Point) ChooseFault(faults ...string) string {
	for _, fault := range faults {
		if p.name+"/"+fault == points().crash {
			points().recordLine("!" + p.name + "/" + fault)
			return fault
		}
	}
	return ""
}

// holdOperation waits until the tests release the operation, if CrashEnv says to hold it at this point.
func (p Point) holdOperation() {
	if !strings.HasPrefix(points().crash, p.name+"/held") {
		return
	}
	points().recordLine("!" + points().crash)
	for begin := time.Now(); time.Since(begin) < maxHold; time.Sleep(holdPeriod) {
		if _, err := os.Stat(os.Getenv(LearnEnv) + releasedSuffix); err == nil {
			return
		}
	}
}

// End marks the end of the operation.
func (p Point) End() { crashAt(p.name + "/after") }

var (
	uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	ids   = regexp.MustCompile(`(fake|run)-[0-9a-f-]{18}|\b[0-9a-f]{12,16}\b|\b[0-9a-f]{64}\b`)
	// containers matches a part of the names of containers, <vm>.<namespace>.<first 8 of the UID>.
	containers = regexp.MustCompile(`\.[a-z0-9-]+\.[0-9a-f]{8}\b`)
	// objects matches a part of the names of driver pod's objects, <vm>-<first 8 of the UID>. A Secret has 8
	// characters of a nonce after the UID.
	objects = regexp.MustCompile(`-[0-9a-f]{8}(-[0-9a-z]{8})?\b`)
	numbers = regexp.MustCompile(`^[0-9]+$`)
)

// nextPoint counts and records an operation on an object, and returns the name of its point.
func (r *recorder) nextPoint(operation, object string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := operation + " " + r.stableName(object)
	r.counts[name]++
	name += "#" + strconv.Itoa(r.counts[name])
	r.writeLine(name)
	return name
}

// recordLine appends a line to the file of LearnEnv.
func (r *recorder) recordLine(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeLine(line)
}

func (r *recorder) writeLine(line string) {
	if r.learn != nil {
		_, _ = fmt.Fprintln(r.learn, line)
	}
}

// stableName returns a name for an object that is the same in every run.
func (r *recorder) stableName(object string) string {
	if filepath.IsAbs(object) {
		object = filepath.Join(filepath.Base(filepath.Dir(object)), filepath.Base(object))
	}
	object = uuids.ReplaceAllStringFunc(object, func(uid string) string {
		if name := r.names[uid]; name != "" {
			return name
		}
		return "UID"
	})
	object = objects.ReplaceAllString(containers.ReplaceAllString(ids.ReplaceAllString(object, "ID"), ""), "")
	parts := strings.Split(object, "/")
	for n, part := range parts {
		parts[n] = numbers.ReplaceAllString(part, "N")
	}
	return strings.Join(parts, ":")
}

// crashAt ends the process, as kill -9 does, if CrashEnv names the point.
func crashAt(point string) {
	if point != points().crash {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
