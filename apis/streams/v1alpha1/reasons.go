// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of a metav1.Status for cases that the reasons of Kubernetes do not cover. A stream that cannot
// begin is answered with an HTTP error and a Status; one that ends later sends the Status on channel
// 3. There its message begins with the reason, since client-go returns the message alone.
const (
	// ReasonServerStopped is the end of the output of a server that stopped, with code 409. A
	// console can be opened again once the server runs.
	ReasonServerStopped metav1.StatusReason = "ServerStopped"
	// ReasonConsoleTaken is the end of a console that someone else writes to, with code 409.
	// The message says who and since when. It may be opened to read.
	ReasonConsoleTaken metav1.StatusReason = "ConsoleTaken"
	// ReasonCommandNotFound says that the server lacks the program of a command, and
	// ReasonCommandNotExecutable that it has it but cannot run it, with code 422. Shells have
	// the exit codes 127 and 126 for them.
	ReasonCommandNotFound      metav1.StatusReason = "CommandNotFound"
	ReasonCommandNotExecutable metav1.StatusReason = "CommandNotExecutable"
	// ReasonUnsupported says that the driver, or the server as it is, does not offer the
	// stream, with code 501.
	ReasonUnsupported metav1.StatusReason = "Unsupported"
	// ReasonOutputLost is the end of a log whose next part was removed before it was read, with
	// code 410. ParseLostOutput reads its message. A log that is opened again goes on behind it.
	ReasonOutputLost metav1.StatusReason = "OutputLost"
)

const lostOutput = "%d bytes of standard output and %d of standard error were removed before they were read"

// FormatLostOutput returns the message of ReasonOutputLost.
func FormatLostOutput(stdout, stderr int64) string { return fmt.Sprintf(lostOutput, stdout, stderr) }

// ParseLostOutput reads how many bytes of each stream were lost from a message.
func ParseLostOutput(message string) (stdout, stderr int64, err error) {
	if _, err = fmt.Sscanf(message, lostOutput, &stdout, &stderr); err != nil || stdout < 0 || stderr < 0 {
		return 0, 0, fmt.Errorf("the message %.200q does not say how much is lost", message)
	}
	return stdout, stderr, nil
}

// SplitReason splits the message of a Status of channel 3 into its reason and the rest. The
// reason is empty if the text does not begin with one.
func SplitReason(message string) (reason metav1.StatusReason, rest string) {
	word, rest, found := strings.Cut(message, ": ")
	if !found || !isWord(word) {
		return "", message
	}
	return metav1.StatusReason(word), rest
}

// isWord reports whether the text is a CamelCase word.
func isWord(text string) bool {
	for i, letter := range text {
		upper, lower := letter >= 'A' && letter <= 'Z', letter >= 'a' && letter <= 'z'
		if !upper && (i == 0 || !lower) {
			return false
		}
	}
	return text != ""
}
