// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"regexp"
	"strconv"

	"cloudnative.tw/drover/internal/driver"
)

var (
	missingCommand = regexp.MustCompile(`(?i)no command specified`)
	badCommand     = regexp.MustCompile(`exec: ("(?:[^"\\]|\\.)*"): (?:stat .*: )?(executable file not found in \$PATH|no such file or directory|permission denied|is a directory|not a directory|exec format error)`)
	missingUser    = regexp.MustCompile(`unable to find (user|group) (.+): no matching entries in (passwd|group) file`)
	badDirectory   = regexp.MustCompile(`(?i)cannot mkdir: (.+) is not a directory|chdir to cwd \("([^"]*)"\)`)
)

// Fault returns the error of a process that cannot be started because of the spec or the image, so
// that another try of the same cannot help. It is nil if the engine's message is of something else.
func Fault(spec driver.ServerSpec, image, text string) error {
	if m := badCommand.FindStringSubmatch(text); m != nil {
		if field := fieldOf(spec, m[1]); field != "" {
			return driver.Errorf(driver.ErrInvalid, "spec.%s: the program %s %s, image %s; correct it, or leave it out to use the image's", field, m[1], commandFaults[m[2]], image)
		}
		return imageError(image, fmt.Sprintf("runs the command %s, which %s", m[1], commandFaults[m[2]]))
	}
	if m := missingUser.FindStringSubmatch(text); m != nil {
		return imageError(image, fmt.Sprintf("runs as the %s %s, which its /etc/%s does not have", m[1], m[2], m[3]))
	}
	if m := badDirectory.FindStringSubmatch(text); m != nil {
		if spec.WorkingDir != "" {
			return driver.Errorf(driver.ErrInvalid, "spec.workingDir: %s cannot be entered in image %s; name another folder, or leave it out to use the image's", m[1]+m[2], image)
		}
		return imageError(image, fmt.Sprintf("has the working directory %s, which cannot be entered", m[1]+m[2]))
	}
	if missingCommand.MatchString(text) {
		return driver.Errorf(driver.ErrInvalid, "spec.image.source: image %s does not name a command to run: set spec.command or spec.args, or name another image", image)
	}
	return nil
}

// fieldOf returns the field of the spec that names a program, which is quoted, or "" if the image does.
func fieldOf(spec driver.ServerSpec, program string) string {
	switch {
	case len(spec.Command) > 0:
		return "command"
	case len(spec.Args) > 0 && strconv.Quote(spec.Args[0]) == program: // the image lacks an entrypoint
		return "args"
	}
	return ""
}

func imageError(image, problem string) error {
	return driver.Errorf(driver.ErrInvalid, "spec.image.source: image %s %s; once the image is repaired, restart the VM, or name another image", image, problem)
}

var commandFaults = map[string]string{
	`executable file not found in $PATH`: "is in no folder of its PATH",
	"no such file or directory":          "does not exist in it",
	"permission denied":                  "is not an executable file",
	"is a directory":                     "is a folder",
	"not a directory":                    "does not exist in it",
	"exec format error":                  "is not a program for this host's CPU",
}
