// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/assert"
)

// failingDisk returns a QEMU whose root disk fails the first writes with an errno.
func failingDisk(t *testing.T, errno, times int) string {
	t.Helper()
	var rules []string
	for range times {
		rules = append(rules, fmt.Sprintf(`{\"event\":\"none\",\"iotype\":\"write\",\"errno\":%d,\"once\":true,\"immediately\":true}`, errno))
	}
	return script(t, fmt.Sprintf(`inject="%s"
for a; do
	shift
	case $a in *'"node-name":"root"'*)
		a=$(printf %%s "$a" | sed 's/"file":\({"discard[^}]*}\)/"file":{"driver":"blkdebug","image":\1,"inject-error":['"$inject"']}/') ;;
	esac
	set -- "$@" "$a"
done
exec qemu-system-x86_64 "$@"`, strings.Join(rules, ",")))
}

// waitsForDisk starts a machine, and waits until its disk has paused the guest. Once the guest runs,
// it makes no further call: each may resume the guest, which uses up a failure of the disk.
func waitsForDisk(t *testing.T, d *Driver, spec driver.ServerSpec) (s driver.Server) {
	t.Helper()
	assert.Eventually(t, "the guest waits for its disk", func(t testing.TB) error {
		listed, err := d.List(t.Context(), spec.UID)
		if err == nil && (len(listed) == 0 || listed[0].State != driver.StatePaused && listed[0].State != driver.StateRunning) {
			_, err = d.Ensure(t.Context(), spec)
		}
		switch {
		case err != nil:
			return err
		case len(listed) != 1 || listed[0].State != driver.StatePaused || listed[0].Err == nil:
			return fmt.Errorf("it is %+v", listed)
		}
		s = listed[0]
		return nil
	})
	return s
}

// TestResumedLately checks that a guest which its disk paused again soon after a resume
// is not resumed for a while: a disk that fails slowly must not have it resumed in a
// loop.
func TestResumedLately(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.openBinary(t, failingDisk(t, 5, 1))
	spec := e.spec()
	waitsForDisk(t, d, spec)
	h := d.InstanceOf(spec.UID)
	d.DiskResumes.Store(h.Path, d.Clock.Now().Add(time.Hour)) // lately, however slow this host is
	refuses(t, d, spec, driver.ErrRetry, driver.ReasonDiskError)
	d.DiskResumes.Store(h.Path, d.Clock.Now().Add(-machine.ResumeAgain))
	boots(t, d, spec, "drover guest 1 A")
}

// refusesToResume returns the error of a guest whose disk still fails. On a loaded host the
// write may fail only after Ensure has returned, and the next call reports it.
func refusesToResume(t *testing.T, d *Driver, spec driver.ServerSpec) (reported error) {
	t.Helper()
	assert.Eventually(t, "Ensure reports the disk", func(t testing.TB) error {
		if _, reported = d.Ensure(t.Context(), spec); reported == nil {
			return errors.New("it reports nothing")
		}
		return nil
	})
	return reported
}

// goesOn resumes a guest whenever its disk has paused it, until the guest has booted.
func goesOn(t *testing.T, d *Driver, spec driver.ServerSpec) (s driver.Server) {
	t.Helper()
	assert.Eventually(t, "the guest continues", func(t testing.TB) (err error) {
		d.DiskResumes.Delete(d.InstanceOf(spec.UID).Path) // no wait between two resumes
		if s, err = d.Ensure(t.Context(), spec); err != nil {
			return err
		}
		content, err := os.ReadFile(d.InstanceOf(spec.UID).File(machine.SerialLogFile))
		if err == nil && !strings.Contains(string(content), "drover guest 1 A") {
			err = textError(content)
		}
		return err
	})
	return s
}

// TestDiskErrors checks that a disk whose quota is used up, or that fails, pauses the
// guest. The server reports that, and the guest continues where it was once the disk
// works again.
func TestDiskErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		errno int
		kind  error
		says  []string
	}{
		"no room":  {28, driver.ErrExhausted, []string{"no space left on device", "disk is full"}},
		"quota":    {122, driver.ErrExhausted, []string{"root (write): Disk quota exceeded", "raise the quota"}},
		"an error": {5, driver.ErrRetry, []string{"root (write): Input/output error", driver.ReasonDiskError}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			d := e.openBinary(t, failingDisk(t, c.errno, 8))
			spec := e.spec()
			s := waitsForDisk(t, d, spec)
			err := refusesToResume(t, d, spec)
			wantError(t, err, c.kind, append(c.says, "the guest was paused by an error of its disk")...)
			listed := listAnswering(t, d, spec.UID)
			if got := listed[0].Err; got == nil || !strings.HasSuffix(err.Error(), got.Error()) || errors.Is(got, driver.ErrExhausted) != errors.Is(c.kind, driver.ErrExhausted) {
				t.Errorf("List says %v, and Ensure %v", got, err)
			}
			after := goesOn(t, d, spec)
			if after.Run != s.Run || after.Err != nil {
				t.Errorf("it is %+v, and was %+v", after, s)
			}
		})
	}
}
