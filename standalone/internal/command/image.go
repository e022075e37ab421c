// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/internal/driver/qemu/folder"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/engines"
)

// pruneTimeout limits how long prune waits for disks that are being created from images.
const pruneTimeout = time.Minute

type imageOptions struct {
	Program

	dataDir, qemuDir string
	output           outputFormat
	out              io.Writer
}

func (p Program) newImageCommand() *cobra.Command {
	o := &imageOptions{Program: p}
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Show and remove the images that the qemu driver has fetched",
		Long: `Show and remove the images that the qemu driver has fetched, from web servers
and from registries. Drover may run meanwhile.`,
	}
	list := o.newSubcommand("list", "Show the images and the machines that use them", o.listImages)
	addOutputFlag(list.Flags(), &o.output)
	cmd.AddCommand(list, o.newSubcommand("prune", "Remove the images that no machine uses", o.pruneImages))
	return cmd
}

func (o *imageOptions) newSubcommand(name, short string, run func(context.Context, []*folder.Folder) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = cmd.OutOrStdout()
			caches, err := o.openCaches()
			if err != nil {
				return err
			}
			return run(cmd.Context(), caches)
		},
	}
	o.AddDataDirFlag(cmd.Flags(), &o.dataDir)
	cmd.Flags().StringVar(&o.qemuDir, "qemu-dir", "", "folder of machines (default: the folders that the Drover of the data dir has used)")
	return cmd
}

// openCaches opens the folders with images. If --qemu-dir is given, it does not need a data dir, so
// that the command also works for the machines of a drover-controller.
func (o *imageOptions) openCaches() ([]*folder.Folder, error) {
	if err := datadir.BecomeOwner(cmp.Or(o.qemuDir, o.dataDir)); err != nil {
		return nil, err
	}
	dirs := []string{o.qemuDir}
	if o.qemuDir == "" {
		var err error
		if dirs, err = o.usedDirs(); err != nil {
			return nil, err
		}
	}
	caches := make([]*folder.Folder, 0, len(dirs))
	for _, dir := range dirs {
		c, err := folder.Open(dir, o.Clock)
		if errors.Is(err, fs.ErrNotExist) && o.qemuDir == "" {
			continue // the folder was used before, and has been removed
		}
		if err != nil {
			return nil, err
		}
		caches = append(caches, c)
	}
	return caches, nil
}

func (o *imageOptions) usedDirs() ([]string, error) {
	path, err := filepath.Abs(o.dataDir)
	if err != nil {
		return nil, err
	}
	layout := datadir.Layout(path)
	found, err := layout.Exists()
	if err == nil && !found {
		err = fmt.Errorf("%s is not a Drover data dir", path)
	}
	if err != nil {
		return nil, err
	}
	return engines.DataDirs(layout.Engines(), qemu.Name)
}

func (o *imageOptions) listImages(_ context.Context, caches []*folder.Folder) error {
	var images []folder.Image
	for _, c := range caches {
		some, err := c.Images()
		if err != nil {
			return err
		}
		images = append(images, some...)
	}
	slices.SortStableFunc(images, func(a, b folder.Image) int {
		return cmp.Compare(formatSources(a.Sources), formatSources(b.Sources))
	})
	switch {
	case o.output == outputJSON:
		return printable.JSON(o.out, describeImages(images))
	case len(images) == 0:
		return o.printf("No images.\n")
	}
	return o.printTable(images)
}

func (o *imageOptions) printTable(images []folder.Image) error {
	table := tabwriter.NewWriter(o.out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(table, "DIGEST\tSIZE\tAGE\tUSED BY\tSOURCE")
	for _, i := range images {
		age := duration.HumanDuration(o.Clock.Since(i.FetchedAt))
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", shortDigest(i.Digest), formatSize(i.Size), age, printable.Line(formatUsers(i.UsedBy)), printable.Line(formatSources(i.Sources)))
	}
	return table.Flush()
}

// imageJSON is an image in the JSON output.
type imageJSON struct {
	Digest    string    `json:"digest"`
	SizeBytes int64     `json:"sizeBytes"`
	FetchedAt time.Time `json:"fetchedAt"`
	UsedBy    []string  `json:"usedBy"`
	Sources   []string  `json:"sources"`
}

func describeImages(images []folder.Image) []imageJSON {
	all := make([]imageJSON, 0, len(images))
	for _, i := range images {
		all = append(all, imageJSON{
			Digest: i.Digest, SizeBytes: i.Size, FetchedAt: i.FetchedAt,
			UsedBy: append([]string{}, i.UsedBy...), Sources: redactAll(i.Sources),
		})
	}
	return all
}

func (o *imageOptions) pruneImages(ctx context.Context, caches []*folder.Folder) error {
	ctx, cancel := context.WithTimeout(ctx, pruneTimeout)
	defer cancel()
	var count int
	var bytes int64
	var errs []error
	for _, c := range caches {
		removed, err := c.PruneImages(ctx)
		errs = append(errs, err)
		for _, i := range removed {
			count, bytes = count+1, bytes+i.Size
			errs = append(errs, o.printf("%s   %s   %s\n", shortDigest(i.Digest), formatSize(i.Size), printable.Line(formatSources(i.Sources))))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if count == 0 {
		return o.printf("No images to remove.\n")
	}
	return o.printf("Removed: %d, %s.\n", count, formatSize(bytes))
}

func (o *imageOptions) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(o.out, format, args...)
	return err
}

// shortDigest returns the beginning of a digest, which is enough to distinguish images.
func shortDigest(digest string) string {
	const digits = len("sha256:") + 12
	return digest[:min(len(digest), digits)]
}

func formatSize(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// formatUsers formats the names of an image's users, shortened for readability.
func formatUsers(names []string) string {
	const shown = 3
	switch {
	case len(names) == 0:
		return "-"
	case len(names) > shown:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ","), len(names)-shown)
	}
	return strings.Join(names, ",")
}

func formatSources(all []string) string {
	if len(all) == 0 {
		return "-"
	}
	return strings.Join(redactAll(all), ",")
}

// redactAll removes passwords from sources.
func redactAll(sources []string) []string {
	shown := make([]string, len(sources))
	for i, text := range sources {
		shown[i] = source.Parse(text).String()
	}
	return shown
}
