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
	// LearnEnv names a file to which every point that is reached is appended, and with "!"
	// before it, every fault that was chosen.
	LearnEnv = "DROVER_CRASHPOINT_LEARN"
	// releasedSuffix is the suffix of a file beside the one of LearnEnv. It lets an operation go
	// on that is held.
	releasedSuffix = ".released"
	// CrashEnv is the point at which the process ends: "<operation> <object>#<ordinal>/before",
	// or after. For a request it may also be one of the answers of Point.Chosen, and for a call
	// one of callFaults. "/held" and a text, in place of /before, halts it there.
	CrashEnv = "DROVER_CRASHPOINT"
)

// Tests that end leave nothing held for longer than maxHold.
const maxHold, holdPeriod = time.Minute, 2 * time.Millisecond

// Point is one operation on one object, with its ordinal among those in this process.
type Point struct{ name string }

// recorder counts the operations of this process.
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

// NameObject makes points show a UID as a name, which is the same in every run.
func NameObject(uid, name string) {
	r := points()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names[uid] = name
}

// Begin marks the begin of an operation. An object that is a path is shown by its last
// two elements.
func Begin(operation, object string) Point {
	p := Point{points().count(operation, object)}
	crashAt(p.name + "/before")
	p.holdProcess()
	return p
}

// Chosen returns which of some faults is to happen at the point instead of a crash, or
// nothing, and records that it happens.
func (p Point) Chosen(faults ...string) string {
	for _, fault := range faults {
		if p.name+"/"+fault == points().crash {
			points().noteLine("!" + p.name + "/" + fault)
			return fault
		}
	}
	return ""
}

// holdProcess halts the operation, if the point is the chosen one, until the tests release it.
func (p Point) holdProcess() {
	if !strings.HasPrefix(points().crash, p.name+"/held") {
		return
	}
	points().noteLine("!" + points().crash)
	for begin := time.Now(); time.Since(begin) < maxHold; time.Sleep(holdPeriod) {
		if _, err := os.Stat(os.Getenv(LearnEnv) + releasedSuffix); err == nil {
			return
		}
	}
}

// End marks its end.
func (p Point) End() { crashAt(p.name + "/after") }

var (
	uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	ids   = regexp.MustCompile(`(fake|run)-[0-9a-f-]{18}|\b[0-9a-f]{12,16}\b|\b[0-9a-f]{64}\b`)
	// containers have the names <vm>.<namespace>.<first 8 of the UID>.
	containers = regexp.MustCompile(`\.[a-z0-9-]+\.[0-9a-f]{8}\b`)
	// objects of driver pod have the names <vm>-<first 8 of the UID>, and a Secret 8 of a nonce after that.
	objects = regexp.MustCompile(`-[0-9a-f]{8}(-[0-9a-z]{8})?\b`)
	numbers = regexp.MustCompile(`^[0-9]+$`)
)

// count returns the name of the next point of an operation on an object.
func (r *recorder) count(operation, object string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := operation + " " + r.stableName(object)
	r.counts[name]++
	name += "#" + strconv.Itoa(r.counts[name])
	r.writeLine(name)
	return name
}

// noteLine adds a line to the record of points.
func (r *recorder) noteLine(line string) {
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

// crashAt ends the process, as kill -9 does, if the point is the chosen one.
func crashAt(point string) {
	if point != points().crash {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
