// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/framework"
)

// volumeScript prints the files of the volumes and changes them.
const volumeScript = `
trap 'exit 0' TERM
for path in /srv/kept /srv/data /srv/made /srv/link/in; do
	cat $path/first 2>/dev/null
	echo $NAME >>$path/runs
	cat $path/runs
	busybox stat -c '%u:%g %a' $path
	busybox rm -f $path/first
	busybox grep -c " $(cd -P $path && pwd) " /proc/mounts
done
echo ends
sleep 1000000 & wait
`

// volumePrints returns the output of volumeScript for a volume. The first run finds the image's file.
func volumePrints(first, runs string) string { return first + runs + "0:0 755\n1\n" }

// testVolumes checks that a server finds the image's files in VOLUMEs and in volumes of its spec, that a restart keeps
// what it has changed there, and that a volume of the spec also outlasts another command line.
func (e *env) testVolumes(t *testing.T) {
	c := imageCase{
		files:  map[string]string{"srv/kept/first": "kept\n", "srv/data/first": "data\n", "var/target/in/first": "in\n"},
		links:  map[string]string{"srv/link": "../../../var/target"},
		config: baseImage(),
	}
	c.config.Volumes = map[string]struct{}{"/srv/kept": {}, "/srv/data": {}, "/srv/made/": {}}
	spec := e.specOfImage(t, c.imageOn(t, framework.BusyBoxImage(t, v1.Config{})))
	spec.Args, spec.Env = []string{volumeScript}, []driver.EnvVar{envVar("NAME", "a")}
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 30, MountPath: "/srv/data"}, {Name: "drover-root", SizeBytes: 1 << 30, MountPath: "/srv/link/in"}}
	run := ""
	for _, runs := range []string{"a\n", "a\na\n"} {
		first := func(text string) string { return map[bool]string{true: text}[run == ""] }
		printed := volumePrints(first("kept\n"), runs) + volumePrints(first("data\n"), runs) + volumePrints("", runs) + volumePrints(first("in\n"), runs) + "ends\n"
		run = e.startRun(t, spec, run).Run
		e.waitForOutput(t, spec, printed)
		e.wantPrinted(t, spec, printed, "")
		e.requestStop(t, spec)
		e.wantExit(t, spec, 0, "")
	}
	spec.Env = []driver.EnvVar{envVar("NAME", "b")}
	e.startRun(t, spec, run)
	e.waitForOutput(t, spec, volumePrints("", "a\na\nb\n"))
}

// badMountPaths are refused by every driver.
var badMountPaths = map[string]string{
	"srv": "an absolute path", "/srv/": "an absolute path", "/srv/../a": "an absolute path", "/srv//a": "an absolute path",
	"/": "cannot be volumes", "/etc": "cannot be volumes", "/proc": "cannot be volumes", "/sys/fs": "cannot be volumes", "/dev/shm": "cannot be volumes",
}

func (e *env) testBadMountPath(t *testing.T, path, text string) {
	spec := e.specOf(t, nil, func(s *driver.ServerSpec) {
		s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 30, MountPath: path}}
	})
	e.wantRefused(t, spec, "spec.volumes[0].mountPath", text)
}
