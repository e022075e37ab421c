// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
)

var (
	errDeclined = errors.New("nothing was deleted")
	errNotAsked = errors.New("nothing was deleted: there is no terminal to ask on, so confirm with --yes")
)

// AskUser asks whether to delete something, and returns an error unless the answer is yes.
func (o *Options) AskUser(ctx context.Context, question string) error {
	if !isInteractive(o.In, o.ErrOut) {
		return errNotAsked
	}
	_, _ = fmt.Fprintf(o.ErrOut, "%s [y/N] ", question)
	answer, err := readAnswer(ctx, o.In, o.ErrOut)
	if err != nil {
		return err
	}
	if !servers.IsYes(answer) {
		return errDeclined
	}
	return nil
}

// isInteractive reports whether a user can answer a question.
func isInteractive(in io.Reader, errOut io.Writer) bool {
	file, ok := in.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && TerminalOf(errOut).IsTerminal
}

// readAnswer reads a line. Ctrl-D gives an empty answer, and Ctrl-C an error.
func readAnswer(ctx context.Context, in io.Reader, errOut io.Writer) (string, error) {
	answers := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n')
		answers <- line
	}()
	select {
	case answer := <-answers:
		if !strings.HasSuffix(answer, "\n") {
			_, _ = fmt.Fprintln(errOut)
		}
		return answer, nil
	case <-ctx.Done():
		_, _ = fmt.Fprintln(errOut)
		return "", ctx.Err()
	}
}
