// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"cloudnative.tw/drover/internal/driver"
)

var (
	missingCommand = regexp.MustCompile(`(?i)no command specified`)
	badCommand     = regexp.MustCompile(`exec: ("(?:[^"\\]|\\.)*"): (?:stat .*: )?(executable file not found in \$PATH|no such file or directory|permission denied|is a directory|not a directory|exec format error)`)
	missingUser    = regexp.MustCompile(`unable to find (user|group) (.+): no matching entries in (passwd|group) file`)
	badSysctl      = regexp.MustCompile(`sysctl "([^"]+)" is (not .+?): unknown|(?:open|write) /proc/sys/(\S+): (.+?): unknown`)
	badVolume      = regexp.MustCompile(`source (\S+) is not directory`)
	badDirectory   = regexp.MustCompile(`(?i)cannot mkdir: (.+) is not a directory|chdir to cwd \("([^"]*)"\)`)
)

// Fault returns an error if text, the engine's message, says that a process cannot be started because of
// the spec or the image: a retry cannot help. It returns nil for other messages.
func Fault(spec driver.ServerSpec, image, text string) error {
	if m := badCommand.FindStringSubmatch(text); m != nil {
		if field := fieldOf(spec, m[1]); field != "" {
			return driver.Errorf(driver.ErrInvalid, "spec.%s: the program %s %s in image %s; correct the field, or leave it out to use the image's", field, m[1], commandFaults[m[2]], image)
		}
		return imageError(image, fmt.Sprintf("runs the command %s, which %s", m[1], commandFaults[m[2]]))
	}
	if m := missingUser.FindStringSubmatch(text); m != nil {
		if spec.User != "" {
			return driver.Errorf(driver.ErrInvalid, "spec.user: image %s lacks the %s %s in its /etc/%s; name another %s or an ID, or leave the field out to use the image's", image, m[1], m[2], m[3], m[1])
		}
		return imageError(image, fmt.Sprintf("runs as the %s %s, which its /etc/%s does not have", m[1], m[2], m[3]))
	}
	if m := badDirectory.FindStringSubmatch(text); m != nil {
		if spec.WorkingDir != "" {
			return driver.Errorf(driver.ErrInvalid, "spec.workingDir: %s cannot be entered in image %s; name another folder, or leave the field out to use the image's", m[1]+m[2], image)
		}
		return imageError(image, fmt.Sprintf("has the working directory %s, which cannot be entered", m[1]+m[2]))
	}
	if m := badVolume.FindStringSubmatch(text); m != nil {
		return volumeFault(spec, image, m[1])
	}
	if fault := sysctlFault(spec, text); fault != nil {
		return fault
	}
	if missingCommand.MatchString(text) {
		return driver.Errorf(driver.ErrInvalid, "spec.image.source: image %s does not name a command to run: set spec.command or spec.args, or name another image", image)
	}
	return nil
}

// volumeFault returns an error for a path, with the engine's path of the image's root before it, that is not a folder.
func volumeFault(spec driver.ServerSpec, image, path string) error {
	for i, v := range spec.Volumes {
		if v.MountPath != "" && strings.HasSuffix(path, v.MountPath) {
			return driver.Errorf(driver.ErrInvalid, "spec.volumes[%d].mountPath: %s is a file in image %s; name a folder", i, v.MountPath, image)
		}
	}
	return imageError(image, "has a file at the path of a VOLUME")
}

// sysctlFault returns an error if text says that a sysctl of the spec cannot be set.
func sysctlFault(spec driver.ServerSpec, text string) error {
	m := badSysctl.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	for _, s := range spec.Sysctls {
		switch {
		case s.Name == m[1]:
			return driver.Errorf(driver.ErrInvalid, "spec.sysctls: %s=%s cannot be set, since %s is %s: leave it out, or use driver qemu", s.Name, s.Value, s.Name, m[2])
		case strings.NewReplacer(".", "/", "/", ".").Replace(s.Name) == m[3]:
			return driver.Errorf(driver.ErrInvalid, "spec.sysctls: %s=%s cannot be set: %s", s.Name, s.Value, m[4])
		}
	}
	return nil
}

// fieldOf returns the field of the spec that names a program, or "" if the image names it.
func fieldOf(spec driver.ServerSpec, quotedProgram string) string {
	switch {
	case len(spec.Command) > 0:
		return "command"
	case len(spec.Args) > 0 && strconv.Quote(spec.Args[0]) == quotedProgram: // the image lacks an entrypoint
		return "args"
	}
	return ""
}

func imageError(image, problem string) error {
	return driver.Errorf(driver.ErrInvalid, "spec.image.source: image %s %s; repair the image and restart the VM, or name another image", image, problem)
}

var commandFaults = map[string]string{
	`executable file not found in $PATH`: "is in no folder of PATH",
	"no such file or directory":          "does not exist",
	"permission denied":                  "is not an executable file",
	"is a directory":                     "is a folder",
	"not a directory":                    "does not exist",
	"exec format error":                  "is not a program for this host's CPU",
}
