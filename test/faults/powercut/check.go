// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework/rules"
)

// maxViolations is the number of violations that end the search.
const maxViolations = 20

// errEnough ends a search.
var errEnough = errors.New("enough violations were found")

// marksSuffix is appended to the name of a folder with a saved state. The resulting file has the Marks of
// that state.
const marksSuffix = ".marks.json"

// checker opens the driver on states after power cuts. It checks that finished steps stay done,
// that the step in progress can be finished, and that guests keep their data.
type checker struct {
	*environment

	recording  *Recording // nil in a replay, where the content of disks is not known
	end        State      // after all changes
	violations []lab.Violation
}

func (c *checker) check(ctx context.Context, s State) error {
	dir := filepath.Join(c.dir, fmt.Sprintf("state-%d", s.Number))
	if err := s.Write(dir); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	broken := c.checkFolder(ctx, s.Marks, dir)
	if broken == nil {
		return nil
	}
	kept, err := keepState(s)
	if err != nil {
		return err
	}
	c.violations = append(c.violations, lab.Violation{Case: kept, Rule: ruleOf(broken), Text: fmt.Sprintf("%s: %v", s.Text, broken)})
	if len(c.violations) >= maxViolations {
		return errEnough
	}
	return nil
}

// errGuestData means that rules.GuestDataKept is broken.
var errGuestData = errors.New("data that a guest had synced is lost")

// ruleOf returns the rule that was broken.
func ruleOf(broken error) rules.Rule {
	if errors.Is(broken, errGuestData) {
		return rules.GuestDataKept
	}
	return rules.Converges
}

// keepState writes a state to a folder for Replay.
func keepState(s State) (string, error) {
	dir, err := os.MkdirTemp("", "drover-powercut-state-")
	if err != nil {
		return "", err
	}
	marks, err := json.Marshal(s.Marks)
	return dir, errors.Join(err, s.Write(dir), os.WriteFile(dir+marksSuffix, marks, 0o600))
}

// checkFolder opens the driver, compares its servers with the steps so far, and finishes the step in
// progress.
func (c *checker) checkFolder(ctx context.Context, marks []string, dir string) error {
	w, err := c.inputsIn(dir).open(c.program)
	if err != nil {
		return err
	}
	if closer, ok := driver.As[driver.Closer](w.driver); ok {
		defer func() { _ = closer.Close(ctx) }()
	}
	if w.isVolatile {
		_, err := w.driver.List(ctx)
		return err
	}
	if err := c.checkStore(w, dir); err != nil {
		return err
	}
	done, begun := w.progress(marks)
	if err := w.checkPresence(ctx, done, begun); err != nil {
		return err
	}
	if err := c.checkDisks(w, dir, done, begun); err != nil {
		return fmt.Errorf("%w: %w", errGuestData, err)
	}
	if begun != nil {
		if err := w.doStep(ctx, *begun); err != nil {
			return fmt.Errorf("%s cannot be finished: %w", begun.name, err)
		}
		if err := w.checkPresence(ctx, append(done, *begun), nil); err != nil {
			return fmt.Errorf("%s was finished: %w", begun.name, err)
		}
	}
	return c.checkRemoval(ctx, w, dir)
}

// checkStore checks that images are complete or absent, and not absent if a server needs them.
func (c *checker) checkStore(w *workload, dir string) error {
	if c.recording == nil {
		return nil
	}
	_, err := os.Stat(filepath.Join(dir, w.storeUserFile))
	isNeeded := err == nil
	for _, path := range c.end.filesIn(w.store) {
		want, _ := c.end.FileAt(path)
		have, err := os.ReadFile(filepath.Join(dir, path))
		switch exists := err == nil; {
		case w.mayChange(filepath.Base(path)):
		case exists && !bytes.Equal(have, want):
			return fmt.Errorf("%s has %d bytes that differ from the %d bytes of the image", path, len(have), len(want))
		case !exists && isNeeded:
			return fmt.Errorf("%w, but a server needs it", err)
		}
	}
	return nil
}

// progress returns the steps that had ended, and the step that had only begun.
func (w *workload) progress(marks []string) (done []step, begun *step) {
	for _, s := range w.steps {
		switch {
		case slices.Contains(marks, "end "+s.name):
			done = append(done, s)
		case slices.Contains(marks, "begin "+s.name):
			begun = &s
		}
	}
	return done, begun
}

// checkPresence checks that each server is there, retained or nowhere, as after its last step.
func (w *workload) checkPresence(ctx context.Context, done []step, begun *step) error {
	servers, err := w.list(ctx)
	if err != nil {
		return err
	}
	found := map[types.UID][]presence{}
	for _, s := range servers {
		at := presenceThere
		if s.Retained {
			at = presenceRetained
		}
		found[s.UID] = append(found[s.UID], at)
	}
	for uid, spec := range w.specs {
		want, got := presenceNone, presenceNone
		if s := lastStep(uid, done); s != nil {
			want = s.to
		}
		if len(found[uid]) > 0 {
			got = found[uid][0]
		}
		if len(found[uid]) > 1 || got != want && (begun == nil || begun.uid != uid || got != begun.to) {
			return fmt.Errorf("server %s is %q, want %s", spec.Name, found[uid], want)
		}
	}
	return nil
}

// list lists the servers, again until no server has an error. On a busy host, a QEMU process that was just
// started may be slow to answer.
func (w *workload) list(ctx context.Context) ([]driver.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	for {
		servers, err := w.driver.List(ctx)
		n := slices.IndexFunc(servers, func(s driver.Server) bool { return s.Err != nil })
		if err != nil || n < 0 {
			return servers, err
		}
		if pause(ctx) != nil {
			return nil, fmt.Errorf("server %s: %w", servers[n].Name, servers[n].Err)
		}
	}
}

// lastStep returns the last step of a server, or nil.
func lastStep(uid types.UID, done []step) (last *step) {
	for _, s := range done {
		if s.uid == uid {
			last = &s
		}
	}
	return last
}

// checkDisks checks that disks have the same content as after their server's last step.
func (c *checker) checkDisks(w *workload, dir string, done []step, begun *step) error {
	for uid := range w.specs {
		last := lastStep(uid, done)
		if c.recording == nil || last == nil || w.specs[uid].Ephemeral || last.to != presenceThere || begun != nil && begun.uid == uid && begun.to != presenceThere {
			continue
		}
		after, _ := c.recording.After("end " + last.name)
		for _, disk := range w.disks {
			want, exists := after.FileAt(w.diskPath(uid, disk))
			if !exists {
				continue // a volume is created at the first start
			}
			have, err := os.ReadFile(filepath.Join(dir, w.diskPath(uid, disk)))
			if err != nil {
				return fmt.Errorf("after %s: %w", last.name, err)
			}
			if begun != nil && begun.uid == uid {
				have = have[:min(len(have), len(want))] // the step in progress may have written more
			}
			if !bytes.Equal(have, want) {
				return fmt.Errorf("the content of disk %s has changed since step %q: it had %d bytes, and now has %d", disk, last.name, len(want), len(have))
			}
		}
	}
	return nil
}

// checkRemoval deletes all servers and checks that no files are left.
func (c *checker) checkRemoval(ctx context.Context, w *workload, dir string) error {
	for uid, spec := range w.specs {
		if err := w.removeServer(ctx, uid, false); err != nil {
			return fmt.Errorf("server %s cannot be deleted: %w", spec.Name, err)
		}
	}
	if _, err := c.inputsIn(dir).open(c.program); err != nil { // opening cleans up too
		return fmt.Errorf("opening the driver again: %w", err)
	}
	for _, name := range w.folders {
		left, err := filepath.Glob(filepath.Join(dir, name, "*"))
		if err != nil || len(left) > 0 {
			return fmt.Errorf("the files %s are left", strings.Join(left, ", "))
		}
	}
	return nil
}
