// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// frontLanes is how many packages that start processes run at a time. Because their tests mostly wait,
// two packages just keep two CPUs busy.
const frontLanes = 2

// runGate runs the tests that must pass before a change lands, or those of some packages. In front it
// runs the packages that start processes, frontLanes at a time. Behind, with the remaining CPU time, it
// builds the next programs and tests the packages that start no processes.
func runGate(ctx context.Context, args []string) error {
	front, behind, err := selectPackages(args)
	if err != nil {
		return err
	}
	if err := checkHost(ctx); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		fmt.Println("warning: tests that only root can run are left out: sudo make test")
	}
	m, err := newMark()
	if err != nil {
		return err
	}
	programs, rest := make(chan build, len(front)), make(chan []part, 1)
	go func() {
		runInBackground()
		for _, p := range front {
			programs <- m.build(ctx, p)
		}
		close(programs)
		rest <- testCached(ctx, behind)
	}()
	waits := filepath.Join(m.dir, "waits")
	parts := append(m.runFront(ctx, programs, waits), <-rest...)
	if len(args) == 0 && ctx.Err() == nil {
		parts = append(parts, m.runStalest(ctx)...)
	}
	printWaits(waits, 3)
	return m.finish(ctx, parts)
}

// runFront runs programs of tests as soon as they are built, and returns the costs of building and running.
func (m *mark) runFront(ctx context.Context, programs <-chan build, waits string) []part {
	var mu sync.Mutex
	var parts []part
	building := part{name: "link the tests of processes"}
	var lanes sync.WaitGroup
	turns := make(chan struct{}, frontLanes)
	for b := range programs {
		building.add(b.cost)
		if b.err != nil {
			fmt.Println(b.err)
			building.failed = true
			continue
		}
		turns <- struct{}{}
		lanes.Go(func() {
			p := m.run(ctx, testRun{of: b.of, program: b.program, flags: skipFlags(b.of), waitsLog: waits})
			<-turns
			mu.Lock()
			defer mu.Unlock()
			parts = append(parts, p)
		})
	}
	lanes.Wait()
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(b.cpu, a.cpu) })
	return append(parts, building)
}

// selectPackages returns the packages of the gate, or those that are named.
func selectPackages(names []string) (front, behind []testPackage, err error) {
	selected := packages
	if len(names) > 0 {
		selected = nil
	}
	for _, name := range names {
		p, err := findPackage(name)
		if err != nil {
			return nil, nil, err
		}
		selected = append(selected, p)
	}
	for _, p := range selected {
		if p.kind == process {
			front = append(front, p)
		} else if p.kind != full {
			behind = append(behind, p)
		}
	}
	return front, behind, nil
}

// build is a program of tests, or the error of building it.
type build struct {
	of      testPackage
	program string
	cost
	err error
}

func (m *mark) build(ctx context.Context, p testPackage) build {
	program, c, err := m.buildTest(ctx, p, false)
	return build{p, program, c, err}
}

// backgroundPriority is the nice value of processes behind; 19 is the lowest priority.
const backgroundPriority = 10

// runInBackground gives the goroutine, and the processes that it starts, backgroundPriority.
func runInBackground() {
	runtime.LockOSThread() // the processes that a thread starts inherit its priority
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, syscall.Gettid(), backgroundPriority)
}

// testCached tests packages that start no processes, as many at a time as there are CPUs.
func testCached(ctx context.Context, all []testPackage) (parts []part) {
	for _, k := range []kind{cached, raced} {
		for _, module := range modules {
			var patterns []string
			for _, p := range all {
				if p.kind == k && p.module() == module {
					patterns = append(patterns, p.pattern())
				}
			}
			if len(patterns) > 0 {
				parts = append(parts, goTest(ctx, module, k == raced, patterns))
			}
		}
	}
	return parts
}

// parallelCached is how many tests of a package that starts no processes run at a time.
const parallelCached = 32

var answeredPattern = regexp.MustCompile(`(?m)^ok\s+cloudnative\.tw/drover/(\S+)\s+\(cached\)`)

func goTest(ctx context.Context, module string, isRaced bool, patterns []string) part {
	args := append([]string{"test", "-timeout=" + testTimeout.String(), fmt.Sprintf("-parallel=%d", parallelCached)}, linkFlags...)
	name := "packages that start nothing, module " + module
	if isRaced {
		args, name = append(args, "-race"), name+", with -race"
	}
	out, c, err := runMeasured(goCommand(ctx, module, append(args, patterns...)...))
	p := part{name: name, cost: c, failed: err != nil}
	for _, match := range answeredPattern.FindAllSubmatch(out, -1) {
		p.answered = append(p.answered, string(match[1]))
	}
	if err != nil {
		fmt.Printf("%s\nFAIL %s: %v\n", out, name, err)
		keepFailure("", out)
		return p
	}
	ran := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(out)), "\n"), func(line string) bool { return strings.Contains(line, "(cached)") })
	fmt.Println(strings.Join(append(ran, fmt.Sprintf("ok   %s: %.1f s, %.1f s of CPU, %d of %d from the cache", name, c.wall.Seconds(), c.cpu.Seconds(), len(p.answered), len(patterns))), "\n"))
	return p
}

// minRoom is the free space on the disk that a run needs.
const minRoom = 8 << 30

// checkPublic fails if other users cannot enter the folder for temporary files, in which root's tests run programs as other
// users.
func checkPublic(temp string) error {
	for dir := temp; os.Geteuid() == 0; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if info.Mode()&0o001 == 0 {
			return fmt.Errorf("other users cannot enter %s, which has the mode %v, and tests run programs as other users in %s: set TMPDIR to a folder such as /tmp", dir, info.Mode(), temp)
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return nil
}

// checkHost fails if tests would fail because of the host.
func checkHost(ctx context.Context) error {
	return errors.Join(checkRoom(ctx), checkPublic(os.TempDir()))
}

// checkRoom fails if a disk has too little free space for the tests.
func checkRoom(ctx context.Context) error {
	cache, err := cacheDir(ctx)
	if err != nil {
		return err
	}
	for _, dir := range []string{os.TempDir(), cache} {
		var s syscall.Statfs_t
		if err := syscall.Statfs(dir, &s); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		if free := s.Bavail * uint64(s.Bsize); free < minRoom { // #nosec -- a size
			return fmt.Errorf("%s has %d MiB of free space: the tests need %d MiB; TMPDIR and DROVER_CACHE choose other disks", dir, free>>20, uint64(minRoom)>>20)
		}
	}
	return nil
}
